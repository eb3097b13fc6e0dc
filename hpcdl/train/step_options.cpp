#include "hpcdl/parallel/span.h"
#include "hpcdl/train/trainer.h"

namespace hpcdl::train {

StepOptions step_options(const RunConfig& config) {
  const auto& t = config.train;
  StepOptions o{.batch = t.batch,
                .length = config.length(),
                .accumulate = t.accumulate > 1,
                .forward = {.compute = t.dtype == Compute::bf16 || is_narrow(t.dtype) ? DType::bf16
                                       : t.dtype == Compute::fp16                     ? DType::f16
                                                                                      : DType::f32,
                            .recompute = t.recompute,
                            .dropout = static_cast<float>(t.dropout),
                            .label_smoothing = static_cast<float>(t.label_smoothing),
                            .mixup = config.data.mixup > 0},
                .optimizer = AdamW::Args{.beta1 = t.beta1,
                                         .beta2 = t.beta2,
                                         .eps = static_cast<float>(t.eps),
                                         .weight_decay = static_cast<float>(t.weight_decay)},
                .clip = static_cast<float>(t.clip),
                .seed = t.seed,
                .copies = {}};
  if (t.moments == Moments::eight_bit) o.optimizer = AdamW8::Args{std::get<AdamW::Args>(o.optimizer)};
  if (t.optimizer == OptimizerKind::sgd)
    o.optimizer = Sgd::Args{.momentum = static_cast<float>(t.momentum),
                            .nesterov = t.nesterov,
                            .weight_decay = static_cast<float>(t.weight_decay)};
  const auto mib = [](double n) { return static_cast<std::int64_t>(n * (1 << 20)); };
  o.reduce = {.buckets = {.cap = mib(config.parallel.bucket_mb), .first = mib(config.parallel.first_bucket_mb)},
              .overlap = config.parallel.overlap,
              .timed = config.parallel.time_exchange};
  o.forward.documents = config.data.packing;
  o.context_mode = config.parallel.cp_mode;
  if (config.offload.optimizer == Tier::host && t.device != "cpu")  // on a CPU it is the same memory
    o.optimizer_place = {.on_host = true, .interleave = config.offload.interleave};
  const auto& offload = config.offload;
  if (offload.optimizer == Tier::disk) o.optimizer_place.folder = offload.folder;
  o.parameters = {.on_host = offload.parameters == Tier::host, .resident = static_cast<int>(offload.resident)};
  if (offload.parameters == Tier::disk) o.parameters.folder = offload.folder;
  o.activations = {.on_host = offload.activations == Tier::host, .share = offload.activation_share};
  if (offload.activations == Tier::disk) o.activations.folder = offload.folder;
  o.zero = static_cast<int>(config.parallel.zero);
  o.span_of_host = config.parallel.zero_span == ZeroSpan::host;
  if (config.parallel.wire_weights == WireWeights::int8) o.wire_weights = WireCode::int8;
  if (config.parallel.wire_gradients == WireGradients::bf16) o.wire_gradients = WireCode::bf16;
  if (config.parallel.wire_gradients == WireGradients::int4) o.wire_gradients = WireCode::int4;
  o.gather_ahead = static_cast<int>(config.parallel.gather_ahead);
  o.stages = {.schedule = config.parallel.schedule,
              .order = config.parallel.order,
              .chunks = static_cast<int>(config.parallel.chunks),
              .micros = static_cast<int>(t.accumulate),
              .layers = config.parallel.layers};
  if (config.parallel.vocabulary == VocabularyPlace::pipeline)
    o.stages.barriers = static_cast<int>(config.parallel.barriers);
  o.numerics = {.products = t.dtype == Compute::tf32 ? F32Products::tf32 : F32Products::exact,
                .atomic_sums = t.atomic_sums};
  o.capacity = config.capacity;
  o.invariant = config.parallel.invariant ? t.accumulate : 0;
  o.share_batch = config.sync_batch_norm || config.model.experts > 0;
  if (t.dtype == Compute::fp16)
    o.scaler = GradScaler::Options{.init_scale = static_cast<float>(t.init_scale),
                                   .growth_factor = static_cast<float>(t.growth_factor),
                                   .backoff_factor = static_cast<float>(t.backoff_factor),
                                   .growth_interval = static_cast<std::int32_t>(t.growth_interval),
                                   .min_scale = static_cast<float>(t.min_scale)};
  return o;
}

void take_ranks(StepOptions& options, const parallel::Mesh& mesh) {
  options.data = mesh.data();
  options.context = mesh.cp();
  options.experts = mesh.experts(), options.same_experts = mesh.same_experts();
  if (options.span_of_host) options.span = parallel::ranks_of_each_host(mesh.data());
  options.stages.group = mesh.pp(), options.stages.world = mesh.world();
}

}  // namespace hpcdl::train
