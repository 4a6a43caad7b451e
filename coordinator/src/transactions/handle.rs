//! From a request to its answer.

use super::request::{Reply, Request};
use crate::coordinator::{Coordinator, Reply as AnyReply, Step, Ticket};

impl Coordinator {
    pub(crate) fn transactions_handle(
        &mut self,
        now_ms: u64,
        ticket: Ticket,
        request: Request,
        step: &mut Step,
    ) {
        let answer = match request {
            Request::Init(request) => self.transaction_init(now_ms, &request, step),
            Request::Add(member, parts) => self.transaction_add(now_ms, &member, parts, step),
            Request::Verify(member, part) => self.transaction_verify(&member, &part),
            Request::End(request) => self.transaction_end(now_ms, &request, step),
            Request::Heartbeat(member) => self.transaction_heartbeat(now_ms, &member),
            Request::Prepare(request) => self.transaction_prepare(now_ms, request, step),
            Request::Forget(request) => self.transaction_forget(&request, step),
            Request::Decided => Ok(self.transactions_decided()),
            Request::Written(request) => self.transaction_written(now_ms, request, step),
            Request::Abort(id) => self.transaction_abort(now_ms, &id, step),
            Request::AbortOne(request) => self.transaction_abort_one(now_ms, &request, step),
            Request::Describe(id) => self.transaction_describe(&id),
            Request::List(filter) => Ok(self.transactions_list(now_ms, &filter)),
        };
        let reply = answer.unwrap_or_else(Reply::Refused);
        step.replies
            .push((ticket, Ok(AnyReply::Transaction(reply))));
    }
}
