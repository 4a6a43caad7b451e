//! The `Streams` service: control calls to [`crate::admin`].

use std::sync::Arc;

use kera_grpc::serve::Caller;
use kera_grpc::v1::streams_server::Streams;
use kera_metadata::access::{Kind, Operation};
use kera_protocol::error::{ErrorCode, WireError};
use kera_protocol::v1;
use tonic::{Request, Response, Status};

use super::describe::{self, broker_description, stream_description, stream_info};
use super::{page_of, status};
use crate::access::{may_do, may_see};
use crate::admin::{self, Maker};
use crate::clock::retention_ms;
use crate::copy_reads;
use crate::data::catalog::Stream;
use crate::principal::Principal;
use crate::shared::Shared;
use crate::store_calls::blocking;

type Answer<T> = Result<Response<T>, Status>;

/// Serves streams.
pub(super) struct StreamsService {
    shared: Arc<Shared>,
}

impl StreamsService {
    /// A service over the broker's catalog.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    fn named(&self, name: &str) -> Result<Arc<Stream>, Status> {
        admin::named(&self.shared, name).map_err(status)
    }

    /// Who makes or deletes a pin of a stream.
    fn maker(&self, caller: Option<&Caller>, stream: &str) -> Maker {
        let of = (Kind::Stream, stream);
        Maker {
            name: Principal::of(caller.and_then(|caller| caller.user.as_ref())).to_string(),
            may_wait: may_do(&self.shared, caller, Operation::AlterConfigs, of),
        }
    }

    /// Charges the caller with lanes that it is about to create, delete or pin.
    fn charge(&self, caller: Option<&Caller>, lanes: u32) -> Result<(), Status> {
        let principal = Principal::of(caller.and_then(|caller| caller.user.as_ref()));
        let charged = self.shared.quotas.mutate(&principal, "", lanes);
        charged.map_err(|wait| {
            let text = format!(
                "{principal} has used up its quota controller_mutation_rate for {} ms; try again then, or see `kera quota list`",
                wait.as_millis()
            );
            status(WireError::new(ErrorCode::Overloaded, text))
        })
    }
}

#[tonic::async_trait]
impl Streams for StreamsService {
    async fn create_stream(
        &self,
        request: Request<v1::CreateStreamRequest>,
    ) -> Answer<v1::StreamInfo> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let config = request.config.unwrap_or_default();
        let wanted = admin::new_config(&self.shared, &request.name, &config).map_err(status)?;
        self.charge(caller.as_ref(), wanted.partitions())?;
        let created = admin::create_stream(&self.shared, &request.name, &config).await;
        let stream = created.map_err(status)?;
        Ok(Response::new(stream_info(
            &self.shared,
            &stream,
            caller.as_ref(),
        )))
    }

    async fn list_streams(
        &self,
        request: Request<v1::ListStreamsRequest>,
    ) -> Answer<v1::ListStreamsResponse> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let streams = self.shared.data.catalog.all();
        let shown = streams
            .iter()
            .filter(|s| request.include_internal || !s.record.load().internal)
            .filter(|s| s.record.load().name > request.after)
            .filter(|s| {
                may_see(
                    &self.shared,
                    caller.as_ref(),
                    (Kind::Stream, &s.record.load().name),
                )
            });
        let (streams, more) = page_of(shown, request.max_streams);
        let streams = streams.into_iter();
        let streams = streams
            .map(|s| stream_info(&self.shared, s, caller.as_ref()))
            .collect();
        Ok(Response::new(v1::ListStreamsResponse { streams, more }))
    }

    async fn get_stream(&self, request: Request<v1::GetStreamRequest>) -> Answer<v1::StreamInfo> {
        let caller = request.extensions().get::<Caller>().cloned();
        let found = admin::named_anywhere(&self.shared, &request.into_inner().name).await;
        let stream = found.map_err(status)?;
        Ok(Response::new(stream_info(
            &self.shared,
            &stream,
            caller.as_ref(),
        )))
    }

    async fn find_copies(
        &self,
        request: Request<v1::FindCopiesRequest>,
    ) -> Answer<v1::FindCopiesResponse> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let stream = self.named(&request.name)?.id();
        let shared = self.shared.clone();
        let find = move || copy_reads::find(&shared, stream, &request, caller.as_ref());
        let found = blocking(find);
        found.await.map(Response::new).map_err(status)
    }

    async fn describe_stream(
        &self,
        request: Request<v1::DescribeStreamRequest>,
    ) -> Answer<v1::DescribeStreamResponse> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let stream = self.named(&request.name)?;
        let described = stream_description(&self.shared, &stream, caller).await;
        let mut described = described.map_err(status)?;
        if !request.local && self.shared.data.directory.is_shared() {
            let others =
                admin::describe_elsewhere(&self.shared, &stream, admin::ANSWER_WITHIN).await;
            describe::join(&stream, &mut described, others);
        }
        Ok(Response::new(described))
    }

    async fn alter_stream(
        &self,
        request: Request<v1::AlterStreamRequest>,
    ) -> Answer<v1::StreamInfo> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let stream = self.named(&request.name)?;
        let config = request.config.unwrap_or_default();
        let wanted = admin::altered_config(&self.shared, &stream, &config).map_err(status)?;
        let present = stream.record.load().config.partitions();
        let grown = wanted.partitions().saturating_sub(present);
        if grown > 0 {
            self.charge(caller.as_ref(), grown)?;
        }
        admin::alter_stream(&self.shared, &stream, &config)
            .await
            .map_err(status)?;
        Ok(Response::new(stream_info(
            &self.shared,
            &stream,
            caller.as_ref(),
        )))
    }

    async fn recover_stream(
        &self,
        request: Request<v1::RecoverStreamRequest>,
    ) -> Answer<v1::RecoverStreamResponse> {
        let request = request.into_inner();
        let stream = self.named(&request.name)?;
        let recovered = admin::recover_stream(&self.shared, &stream, request).await;
        recovered.map(Response::new).map_err(status)
    }

    async fn delete_stream(
        &self,
        request: Request<v1::DeleteStreamRequest>,
    ) -> Answer<v1::DeleteStreamResponse> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let stream = self.named(&request.name)?;
        admin::is_meant(&stream, &request.id).map_err(status)?;
        let lanes = stream.record.load().config.partitions();
        self.charge(caller.as_ref(), lanes)?;
        admin::delete_stream(&self.shared, &stream)
            .await
            .map_err(status)?;
        Ok(Response::new(v1::DeleteStreamResponse {}))
    }

    async fn trim_stream(
        &self,
        request: Request<v1::TrimStreamRequest>,
    ) -> Answer<v1::TrimStreamResponse> {
        let request = request.into_inner();
        let stream = self.named(&request.name)?;
        let trimmed = admin::trim_stream(&self.shared, &stream, request).await;
        trimmed.map(Response::new).map_err(status)
    }

    async fn compact_stream(
        &self,
        request: Request<v1::CompactStreamRequest>,
    ) -> Answer<v1::CompactStreamResponse> {
        let request = request.into_inner();
        let stream = self.named(&request.name)?;
        let told = admin::compact_stream(&self.shared, &stream, request).await;
        told.map(Response::new).map_err(status)
    }

    async fn create_pin(
        &self,
        request: Request<v1::CreatePinRequest>,
    ) -> Answer<v1::CreatePinResponse> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let stream = self.named(&request.stream)?;
        let maker = self.maker(caller.as_ref(), &request.stream);
        // Each lane has a position.
        let lanes = stream.record.load().config.partitions();
        self.charge(caller.as_ref(), lanes)?;
        let made = admin::create_pin(&self.shared, &stream, request, maker).await;
        let (pin, moved) = made.map_err(status)?;
        Ok(Response::new(v1::CreatePinResponse {
            pin: Some(pin),
            moved,
            now_ms: retention_ms(),
        }))
    }

    async fn list_pins(
        &self,
        request: Request<v1::ListPinsRequest>,
    ) -> Answer<v1::ListPinsResponse> {
        let caller = request.extensions().get::<Caller>().cloned();
        let shared = &self.shared;
        let may_see = |stream: &str| may_see(shared, caller.as_ref(), (Kind::Stream, stream));
        let listed = admin::list_pins(shared, request.into_inner(), may_see).await;
        listed.map(Response::new).map_err(status)
    }

    async fn delete_pin(
        &self,
        request: Request<v1::DeletePinRequest>,
    ) -> Answer<v1::DeletePinResponse> {
        let caller = request.extensions().get::<Caller>().cloned();
        let request = request.into_inner();
        let maker = self.maker(caller.as_ref(), &request.stream);
        let stream = self.named(&request.stream)?;
        let deleted = admin::delete_pin(&self.shared, &stream, request, maker).await;
        Ok(Response::new(v1::DeletePinResponse {
            pin: Some(deleted.map_err(status)?),
            now_ms: retention_ms(),
        }))
    }

    async fn find_ordinals(
        &self,
        request: Request<v1::FindOrdinalsRequest>,
    ) -> Answer<v1::FindOrdinalsResponse> {
        let request = request.into_inner();
        let stream = self.named(&request.name)?;
        let found = admin::find_ordinals(&self.shared, &stream, request).await;
        found.map(Response::new).map_err(status)
    }

    async fn init_producer(
        &self,
        request: Request<v1::InitProducerRequest>,
    ) -> Answer<v1::InitProducerResponse> {
        let name = request.into_inner().name;
        if !name.is_empty() {
            self.named(&name)?;
        }
        let id = admin::new_producer_id(&self.shared).await;
        Ok(Response::new(v1::InitProducerResponse {
            producer_id: id.map_err(status)?,
            producer_epoch: 0,
        }))
    }

    async fn describe_broker(
        &self,
        _request: Request<v1::DescribeBrokerRequest>,
    ) -> Answer<v1::DescribeBrokerResponse> {
        Ok(Response::new(broker_description(&self.shared).await))
    }
}
