//! Random messages of every type, from a seed. Values sit on the borders of the
//! formats (fixint, uint8, ...; fixstr, str8, ...) far more often than chance
//! would have it.

#![allow(dead_code, reason = "each test binary uses its part")]

use bytes::Bytes;
use ts_wire::control::*;
use ts_wire::msgpack::Integer;
use ts_wire::*;

/// A small deterministic generator (splitmix64).
pub(crate) struct Seed(pub(crate) u64);

impl Seed {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Mostly short, at times on the borders of the length formats.
    fn len(&mut self) -> usize {
        match self.below(12) {
            0 => [15, 16, 17, 31, 32][self.below(5)],
            1 if self.one_in(8) => [255, 256, 257][self.below(3)],
            2 if self.one_in(200) => [65_535, 65_536][self.below(2)],
            _ => self.below(4),
        }
    }
}

/// A random value of the type.
pub(crate) trait Sample {
    fn sample(seed: &mut Seed) -> Self;
}

impl Sample for bool {
    fn sample(seed: &mut Seed) -> Self {
        seed.one_in(2)
    }
}

impl Sample for u64 {
    fn sample(seed: &mut Seed) -> Self {
        let shift = seed.below(64);
        match seed.below(3) {
            0 => (1u64 << shift).wrapping_add(seed.next() % 3).wrapping_sub(1),
            _ => seed.next() >> shift,
        }
    }
}

impl Sample for i64 {
    fn sample(seed: &mut Seed) -> Self {
        let magnitude = (u64::sample(seed) >> 1) as i64;
        if seed.one_in(3) { -magnitude - 1 } else { magnitude }
    }
}

impl Sample for i32 {
    fn sample(seed: &mut Seed) -> Self {
        let magnitude = (u64::sample(seed) as u32 >> 1) as i32;
        if seed.one_in(6) { -magnitude - 1 } else { magnitude }
    }
}

impl Sample for f64 {
    fn sample(seed: &mut Seed) -> Self {
        match seed.below(12) {
            0 => f64::NAN,
            1 => f64::NEG_INFINITY,
            2 => -0.0,
            3 => f64::from_bits(seed.next()),
            4 => 1.0,
            _ => -(seed.below(1 << 20) as f64) / 4096.0,
        }
    }
}

impl Sample for String {
    fn sample(seed: &mut Seed) -> Self {
        let len = seed.len();
        match seed.below(4) {
            0 => "第一é🌍".chars().cycle().take(len).collect(),
            _ => (0..len).map(|_| char::from(b'a' + seed.below(26) as u8)).collect(),
        }
    }
}

impl Sample for Bytes {
    fn sample(seed: &mut Seed) -> Self {
        // Borders of fixext and of the inline threshold of tensors.
        let len = [0, 1, 2, 3, 4, 8, 16, 17, 255, 256, 257, 700][seed.below(12)];
        (0..len).map(|_| seed.next() as u8).collect::<Vec<u8>>().into()
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(seed: &mut Seed) -> Self {
        seed.one_in(2).then(|| T::sample(seed))
    }
}

impl<T: Sample> Sample for Vec<T> {
    fn sample(seed: &mut Seed) -> Self {
        // Long arrays only of small elements.
        let len = if size_of::<T>() <= 8 { seed.len() } else { seed.below(4) };
        (0..len).map(|_| T::sample(seed)).collect()
    }
}

impl<A: Sample, B: Sample> Sample for (A, B) {
    fn sample(seed: &mut Seed) -> Self {
        (A::sample(seed), B::sample(seed))
    }
}

impl<K: Sample, V: Sample> Sample for Dict<K, V> {
    fn sample(seed: &mut Seed) -> Self {
        let len = if seed.one_in(20) { 17 } else { seed.below(3) };
        Dict((0..len).map(|_| Sample::sample(seed)).collect())
    }
}

impl Sample for StrOrList {
    fn sample(seed: &mut Seed) -> Self {
        match seed.below(2) {
            0 => StrOrList::One(Sample::sample(seed)),
            _ => StrOrList::Many(Sample::sample(seed)),
        }
    }
}

impl Sample for Value {
    fn sample(seed: &mut Seed) -> Self {
        value(seed, 4)
    }
}

fn value(seed: &mut Seed, depth: usize) -> Value {
    match seed.below(if depth == 0 { 7 } else { 9 }) {
        0 => Value::Nil,
        1 => Value::Bool(Sample::sample(seed)),
        2 => Value::from(i64::sample(seed)),
        3 => Value::Int(Integer::Unsigned(Sample::sample(seed))),
        4 => Value::Float(Sample::sample(seed)),
        5 => Value::Str(Sample::sample(seed)),
        6 if seed.one_in(2) => Value::Ext(seed.next() as i8, Sample::sample(seed)),
        6 => Value::Bin(Sample::sample(seed)),
        7 => Value::Array((0..seed.below(4)).map(|_| value(seed, depth - 1)).collect()),
        _ => Value::Map((0..seed.below(4)).map(|_| (value(seed, depth - 1), value(seed, depth - 1))).collect()),
    }
}

impl Sample for Modality {
    fn sample(seed: &mut Seed) -> Self {
        [Modality::Image, Modality::Video, Modality::Audio][seed.below(3)]
    }
}

macro_rules! sample {
    ($($name:ident { $($field:ident),* $(,)? })*) => {$(
        impl Sample for $name {
            fn sample(seed: &mut Seed) -> Self {
                Self { $($field: Sample::sample(seed)),* }
            }
        }
    )*};
}

sample! {
    Tensor { dtype, shape, data }
    ShmTensorHandle { shm_name, shape, dtype }
    MultimodalDataItem {
        modality, hash, pad_value, offsets, feature, feature_shm, model_specific_data, encoded, encoded_deepstack,
        encode_handshake,
    }
    MultimodalInputs {
        mm_items, im_token_id, video_token_id, mrope_positions, mrope_position_delta, mrope_position_delta_scalar,
        mrope_position_delta_repeated_cache,
    }
    EncodeRequest { rid, http_worker_ipc, request_id, bootstrap_host, bootstrap_port, bootstrap_room, items }
    SessionParams { id, rid, offset, replace }
    SamplingParams {
        max_new_tokens, stop, stop_token_ids, temperature, top_p, top_k, min_p, frequency_penalty, presence_penalty,
        repetition_penalty, min_new_tokens, json_schema, regex, ebnf, structural_tag, ignore_eos, skip_special_tokens,
        spaces_between_special_tokens, no_stop_trim, thinking_budget, custom_params, stream_interval, logit_bias, seed,
        logprobs, n, stop_strs, stop_str_max_len, is_normalized,
    }
    TokenizedGenerateReqInput {
        rid, http_worker_ipc, input_text, input_ids, sampling_params, return_logprob, logprob_start_len,
        top_logprobs_num, token_ids_logprob, stream, input_embeds, session_params, custom_logit_processor,
        return_hidden_states, created_time, bootstrap_host, bootstrap_port, bootstrap_room, input_multi_ids,
        input_extra_infos, input_ids_unpadded, multimodal_inputs, validation_error, data_parallel_rank,
    }
    ReadyMessage { status, local, headless, parallel_config_hash }
    HandshakeAddresses { inputs, outputs, coordinator_input, coordinator_output, frontend_stats_publish_address }
    HandshakeInitMessage { addresses, parallel_config }
    EngineCoreReadyResponse {
        max_model_len, num_gpu_blocks, prefix_granularity, dp_stats_address, dtype, multimodal_encoder_dtype,
        vllm_version, world_size, data_parallel_size, tensor_parallel_size, pipeline_parallel_size,
        decode_context_parallel_size, data_parallel_rank, max_num_seqs, max_num_batched_tokens, instance_id,
        kv_cache_size_tokens, kv_cache_max_concurrency, kv_events_config,
    }
    FlushCacheReqInput { rid, http_worker_ipc }
    FlushCacheReqOutput { rid, http_worker_ipc, success }
    PauseSchedulerReqInput { rid, http_worker_ipc, mode }
    PauseSchedulerReqOutput { rid, http_worker_ipc, success, message }
    ResumeSchedulerReqInput { rid, http_worker_ipc }
    ResumeSchedulerReqOutput { rid, http_worker_ipc, success, message }
    IsSchedulerPausedReqInput { rid, http_worker_ipc }
    IsSchedulerPausedReqOutput { rid, http_worker_ipc, is_paused }
    UpdateWeightFromDiskReqInput { rid, http_worker_ipc, model_path, load_format, weight_version, flush_cache }
    UpdateWeightFromDiskReqOutput { rid, http_worker_ipc, success, message, num_paused_requests }
    UpdateWeightsFromDistributedReqInput {
        rid, http_worker_ipc, names, dtype_names, shapes, group_name, flush_cache, weight_version,
    }
    UpdateWeightsFromDistributedReqOutput { rid, http_worker_ipc, success, message }
    UpdateWeightsFromTensorReqInput {
        rid, http_worker_ipc, serialized_named_tensors, load_format, flush_cache, weight_version,
    }
    UpdateWeightsFromTensorReqOutput { rid, http_worker_ipc, success, message }
    InitWeightsUpdateGroupReqInput {
        rid, http_worker_ipc, master_address, master_port, rank_offset, world_size, group_name, backend,
    }
    InitWeightsUpdateGroupReqOutput { rid, http_worker_ipc, success, message }
    DestroyWeightsUpdateGroupReqInput { rid, http_worker_ipc, group_name }
    DestroyWeightsUpdateGroupReqOutput { rid, http_worker_ipc, success, message }
    UpdateWeightsFromMooncakeReqInput { rid, http_worker_ipc, version, flush_cache, weight_version }
    UpdateWeightsFromMooncakeReqOutput { rid, http_worker_ipc, success, message }
    RebalanceExpertsReqInput { rid, http_worker_ipc }
    RebalanceExpertsReqOutput { rid, http_worker_ipc, success, message }
    ReleaseMemoryOccupationReqInput { rid, http_worker_ipc, tags }
    ReleaseMemoryOccupationReqOutput { rid, http_worker_ipc, success, message }
    ResumeMemoryOccupationReqInput { rid, http_worker_ipc, tags }
    ResumeMemoryOccupationReqOutput { rid, http_worker_ipc, success, message }
    IsSleepingReqInput { rid, http_worker_ipc }
    IsSleepingReqOutput { rid, http_worker_ipc, is_sleeping }
    GetInternalStateReq { rid, http_worker_ipc }
    GetInternalStateReqOutput { rid, http_worker_ipc, internal_state }
    SetInternalStateReq { rid, http_worker_ipc, server_args }
    SetInternalStateReqOutput { rid, http_worker_ipc, updated, server_args }
    ProfileReq {
        rid, http_worker_ipc, kind, output_dir, start_step, num_steps, activities, profile_by_stage, with_stack,
        record_shapes, profile_id,
    }
    ProfileReqOutput { rid, http_worker_ipc, success, message }
}

macro_rules! sample_enum {
    ($name:ident: $($variant:ident),* $(,)?) => {
        impl Sample for $name {
            fn sample(seed: &mut Seed) -> Self {
                let variants: &[fn(&mut Seed) -> Self] = &[$(|seed| $name::$variant(Sample::sample(seed))),*];
                variants[seed.below(variants.len())](seed)
            }
        }
    };
}

sample_enum!(ControlRequest: FlushCache, PauseScheduler, ResumeScheduler, IsSchedulerPaused, UpdateWeightFromDisk,
    UpdateWeightsFromDistributed, UpdateWeightsFromTensor, InitWeightsUpdateGroup, DestroyWeightsUpdateGroup,
    UpdateWeightsFromMooncake, RebalanceExperts, ReleaseMemoryOccupation, ResumeMemoryOccupation, IsSleeping,
    GetInternalState, SetInternalState, Profile);
sample_enum!(ControlOutput: FlushCache, PauseScheduler, ResumeScheduler, IsSchedulerPaused, UpdateWeightFromDisk,
    UpdateWeightsFromDistributed, UpdateWeightsFromTensor, InitWeightsUpdateGroup, DestroyWeightsUpdateGroup,
    UpdateWeightsFromMooncake, RebalanceExperts, ReleaseMemoryOccupation, ResumeMemoryOccupation, IsSleeping,
    GetInternalState, SetInternalState, Profile);

impl Sample for EngineRequest {
    fn sample(seed: &mut Seed) -> Self {
        match seed.below(4) {
            0 => EngineRequest::Abort(Sample::sample(seed)),
            1 => EngineRequest::Control(Box::new(Sample::sample(seed))),
            _ => EngineRequest::Add(Box::new(Sample::sample(seed))),
        }
    }
}

impl Sample for EngineOutput {
    fn sample(seed: &mut Seed) -> Self {
        match seed.below(8) {
            0 => EngineOutput::Dead,
            1 => EngineOutput::Control(Box::new(Sample::sample(seed))),
            _ => EngineOutput::Batch(Box::new(Sample::sample(seed))),
        }
    }
}

/// Mostly a batch as engines build it; at times one whose columns disagree.
impl Sample for BatchTokenIDOutSlim {
    fn sample(seed: &mut Seed) -> Self {
        let rows = if seed.one_in(10) { 17 } else { seed.below(4) };
        let ragged = seed.one_in(8);
        let absent = seed.next();
        let mut batch = BatchTokenIDOutSlim {
            rids: (!seed.one_in(20)).then(|| column(seed, rows, false)),
            output_ids: column(seed, rows, ragged),
            finished_reasons: column(seed, rows, ragged),
            prompt_tokens: column(seed, rows, ragged),
            completion_tokens: column(seed, rows, ragged),
            cached_tokens: column(seed, rows, ragged),
            output_token_logprobs_val: column(seed, rows, ragged),
            output_token_logprobs_idx: column(seed, rows, ragged),
            engine_index: Sample::sample(seed),
            num_running: Sample::sample(seed),
            num_waiting: Sample::sample(seed),
            kv_active_pages: Sample::sample(seed),
            kv_total_pages: Sample::sample(seed),
            ..Default::default()
        };
        let rows_if = |bit: u32| if absent >> bit & 1 == 0 { rows } else { 0 };
        batch.finish_reason_details = column(seed, rows_if(0), ragged);
        batch.spec_verify_ct = column(seed, rows_if(1), ragged);
        batch.accept_draft_tokens = column(seed, rows_if(2), ragged);
        batch.input_token_logprobs_val = column(seed, rows_if(3), ragged);
        batch.input_token_logprobs_idx = column(seed, rows_if(4), ragged);
        batch.input_top_logprobs_val = column(seed, rows_if(5), ragged);
        batch.input_top_logprobs_idx = column(seed, rows_if(6), ragged);
        batch.output_top_logprobs_val = column(seed, rows_if(7), ragged);
        batch.output_top_logprobs_idx = column(seed, rows_if(8), ragged);
        batch
    }
}

fn column<T: Sample>(seed: &mut Seed, rows: usize, ragged: bool) -> Vec<T> {
    let extra = usize::from(ragged && seed.one_in(6));
    (0..rows + extra).map(|_| T::sample(seed)).collect()
}
