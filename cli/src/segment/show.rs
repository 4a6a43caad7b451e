//! A group file for people.

use super::examine::{AheadView, Examination, Examined, Fault, State};
use crate::failure::Failure;
use crate::output::{Out, Table, count, fact, plural, rounded_bytes};

/// One line: what `kera segment verify` says about a file.
pub(super) fn verdict(found: &Examined) -> String {
    let found = match found {
        Examined::Group(found) => found,
        Examined::Ahead(found) => return ahead(found),
    };
    let what = format!(
        "{} batch{}, {}, ordinals {} to {}",
        count(found.batches),
        if found.batches == 1 { "" } else { "es" },
        plural(found.records, "record"),
        found.first_ordinal,
        found.end_ordinal
    );
    match (&found.state, &found.fault) {
        (State::Sound | State::Ahead, _) | (_, None) => format!("{}: sound, {what}", found.file),
        (State::Torn, Some(fault)) => {
            format!("{}: torn, {}; before it {what}", found.file, place(fault))
        }
        (State::Damaged, Some(fault)) => {
            format!(
                "{}: damaged, {}; before it {what}",
                found.file,
                place(fault)
            )
        }
    }
}

fn ahead(found: &AheadView) -> String {
    format!(
        "{}: ahead, made for a group to come, nothing is written yet",
        found.file
    )
}

fn place(fault: &Fault) -> String {
    format!(
        "first bad byte at {} (segment {}, position {}), batch {} at ordinal {}: {}",
        fault.offset, fault.segment, fault.position, fault.batch, fault.ordinal, fault.reason
    )
}

/// Everything about the file.
pub(super) fn print(found: &Examined, with_batches: bool) -> Result<(), Failure> {
    let mut out = Out::stdout();
    match found {
        Examined::Group(found) => print_group(&mut out, found, with_batches)?,
        Examined::Ahead(found) => out.line(ahead(found))?,
    }
    out.flush()
}

fn print_group(out: &mut Out, found: &Examination, with_batches: bool) -> Result<(), Failure> {
    out.line(&found.file)?;
    let mut lines = vec![
        ("stream", found.stream.clone()),
        (
            "place",
            format!("streamlet {}, lane {}", found.streamlet, found.lane),
        ),
        (
            "group",
            format!(
                "{}, generation {}, epoch {}, ack {}",
                found.group, found.generation, found.epoch, found.ack
            ),
        ),
        (
            "segments",
            format!(
                "{} of at most {}, {} each",
                found.segments.len(),
                found.segments_at_most,
                rounded_bytes(u64::from(found.segment_size))
            ),
        ),
        (
            "lane snapshot",
            rounded_bytes(u64::from(found.snapshot_bytes)),
        ),
        (
            "data",
            format!(
                "{} in {} batch{}, ordinals {} to {}, up to byte {}",
                plural(found.records, "record"),
                count(found.batches),
                if found.batches == 1 { "" } else { "es" },
                found.first_ordinal,
                found.end_ordinal,
                found.end_address
            ),
        ),
    ];
    if let Some(mark) = &found.mark {
        lines.push((
            "durable mark",
            format!(
                "written {} (ordinal {}{}), synced {} (ordinal {})",
                mark.written,
                mark.written_ordinal,
                if mark.same_boot {
                    ""
                } else {
                    ", before a restart of the machine"
                },
                mark.synced,
                mark.synced_ordinal
            ),
        ));
    }
    lines.push((
        "footer",
        match &found.footer {
            Some(footer) => format!(
                "closed at byte {}, ordinal {}, {} index entries",
                footer.length, footer.end_ordinal, footer.index_entries
            ),
            None => "none: the group was not closed in order".into(),
        },
    ));
    lines.push((
        "state",
        match (&found.state, &found.fault) {
            (State::Sound | State::Ahead, _) | (_, None) => "sound".into(),
            (State::Torn, Some(fault)) => format!("torn, {}", place(fault)),
            (State::Damaged, Some(fault)) => format!("damaged, {}", place(fault)),
        },
    ));
    for (name, value) in lines {
        out.line(fact(name, &value))?;
    }
    out.line("")?;
    let mut segments = Table::new(&[
        ">segment", ">offset", ">first", ">batches", ">records", ">used", "created",
    ]);
    for segment in &found.segments {
        segments.row([
            segment.segment.to_string(),
            segment.offset.to_string(),
            segment.first_ordinal.to_string(),
            count(segment.batches),
            count(segment.records),
            rounded_bytes(segment.used),
            segment.created.clone(),
        ]);
    }
    out.bytes(segments.render().as_bytes())?;
    if with_batches {
        let mut batches = Table::new(&[
            ">offset",
            ">ordinal",
            ">records",
            ">bytes",
            ">producer",
            ">epoch",
            ">sequence",
            "compression",
            "newest record",
            "crc",
        ]);
        for batch in &found.listed {
            batches.row([
                batch.offset.to_string(),
                batch.base_ordinal.to_string(),
                batch.records.to_string(),
                batch.bytes.to_string(),
                batch.producer_id.to_string(),
                batch.producer_epoch.to_string(),
                batch.base_sequence.to_string(),
                batch.compression.clone(),
                batch.max_timestamp.clone(),
                batch.crc.clone(),
            ]);
        }
        out.line("")?;
        out.bytes(batches.render().as_bytes())?;
        let rest = found.batches.saturating_sub(found.listed.len() as u64);
        if rest > 0 {
            out.line(format_args!(
                "and {} more; raise --limit to see them",
                count(rest)
            ))?;
        }
    }
    Ok(())
}
