//! The shipments of a shipper: found by number where the number is known, which costs nothing however many
//! there are, and by id.

use std::collections::BTreeMap;

use super::shipment::Shipment;
use crate::ids::CopyId;

/// Shipments by number and by id. A number is used again once its shipment is gone, so who kept one
/// says of which group it was.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Option<Shipment>>,
    free: Vec<u32>,
    numbers: BTreeMap<CopyId, u32>,
}

impl Slots {
    /// Takes a shipment in, in the place of one of the same group if there is any. Its number.
    pub(super) fn insert(&mut self, shipment: Shipment) -> u32 {
        let id = shipment.set.id();
        let number = match self.numbers.get(&id) {
            Some(number) => *number,
            None => self.free.pop().unwrap_or(self.slots.len() as u32),
        };
        self.numbers.insert(id, number);
        match self.slots.get_mut(number as usize) {
            Some(slot) => *slot = Some(shipment),
            None => self.slots.push(Some(shipment)),
        }
        number
    }

    pub(super) fn remove(&mut self, id: &CopyId) -> Option<Shipment> {
        let number = self.numbers.remove(id)?;
        self.free.push(number);
        self.slots.get_mut(number as usize)?.take()
    }

    pub(super) fn number(&self, id: &CopyId) -> Option<u32> {
        self.numbers.get(id).copied()
    }

    /// Whatever has that number now.
    pub(super) fn at(&mut self, number: u32) -> Option<&mut Shipment> {
        self.slots.get_mut(number as usize)?.as_mut()
    }

    /// The shipment of that number, if it is still the one of that group.
    pub(super) fn of(&mut self, number: u32, id: &CopyId) -> Option<&mut Shipment> {
        self.at(number).filter(|shipment| shipment.set.id() == *id)
    }

    pub(super) fn get(&self, id: &CopyId) -> Option<&Shipment> {
        self.slots.get(self.number(id)? as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: &CopyId) -> Option<&mut Shipment> {
        self.at(self.number(id)?)
    }

    /// All ids, in their order, so that a simulation does the same each time.
    pub(super) fn ids(&self) -> Vec<CopyId> {
        self.numbers.keys().copied().collect()
    }

    /// All shipments in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&CopyId, &Shipment)> {
        let numbered = self.numbers.iter();
        numbered.filter_map(|(id, number)| Some((id, self.slots.get(*number as usize)?.as_ref()?)))
    }

    /// All shipments, in any order.
    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut Shipment> {
        self.slots.iter_mut().flatten()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }
}
