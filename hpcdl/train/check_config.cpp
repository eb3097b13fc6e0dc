#include "hpcdl/train/check_config.h"

#include <bit>
#include <cmath>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/core/thread_limit.h"
#include "hpcdl/core/ways.h"
#include "hpcdl/models/compressed_config.h"
#include "hpcdl/models/decoder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/ops/way_names.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/pipe/generate.h"
#include "hpcdl/train/mesh_shape.h"
#include "hpcdl/train/run_table.h"

namespace hpcdl::train {

namespace {

constexpr std::string_view kText[] = {
    "model.init",        "train.length",         "model.layers",     "model.heads",
    "model.kv_heads",    "model.width",          "model.head_dim",   "model.ffn",
    "model.vocab",       "model.context",        "model.norm_eps",   "model.rope_theta",
    "model.tied",        "model.attention_bias", "model.activation", "model.window",
    "data.text",         "data.tokenizer",       "data.cache",       "data.vocab_size",
    "data.val_fraction", "data.replace_invalid", "data.chat",        "data.template",
    "data.mask",         "data.packing",         "parallel.tp",      "parallel.sequence",
    "parallel.cp"};
constexpr std::string_view kImages[] = {
    "model.classes",         "model.stem",    "model.size",     "model.channels",
    "model.sync_batch_norm", "data.images",   "data.coarse",    "data.procedural",
    "data.workers",          "data.prefetch", "data.crop",      "data.flip",
    "data.random_resized",   "data.mixup",    "data.normalise", "train.label_smoothing"};
constexpr std::string_view kAdamw[] = {"train.beta1", "train.beta2", "train.eps", "train.moments"};
constexpr std::string_view kSgd[] = {"train.momentum", "train.nesterov"};
constexpr std::string_view kScaled[] = {"train.base_batch"};
constexpr std::string_view kFp16[] = {"train.init_scale", "train.growth_factor", "train.growth_interval",
                                      "train.backoff_factor", "train.min_scale"};
constexpr std::string_view kFp8[] = {"train.fp8_scaling"};
constexpr std::string_view kNarrow[] = {"train.fp8_first", "train.fp8_last"};
constexpr std::string_view kFalling[] = {"train.min_lr"};
constexpr std::string_view kRotary[] = {"model.rope_theta"};
constexpr std::string_view kExperts[] = {"model.experts", "model.experts_per_token", "model.expert_ffn",
                                         "model.balance", "parallel.ep"};
constexpr std::string_view kDivided[] = {"model.capacity"};
constexpr std::string_view kAdapter[] = {"adapter.r",    "adapter.alpha",   "adapter.rs",  "adapter.dropout",
                                         "adapter.bias", "adapter.targets", "adapter.keep"};
constexpr std::string_view kBase[] = {"model.quantize", "model.double"};
constexpr std::string_view kResnet[] = {"model.stem"};
constexpr std::string_view kOffloaded[] = {"offload.interleave"};
constexpr std::string_view kOnDisk[] = {"offload.folder"};
constexpr std::string_view kMovedWeights[] = {"offload.resident"};
constexpr std::string_view kMovedActivations[] = {"offload.activation_share"};
constexpr std::string_view kDividedState[] = {"parallel.zero_span", "parallel.wire_weights", "parallel.wire_gradients"};
constexpr std::string_view kSharded[] = {"parallel.gather_ahead", "parallel.wire_weights"};
constexpr std::string_view kContext[] = {"parallel.cp_mode"};
constexpr double kLeastCapacity = 0.01;
constexpr std::string_view kPipeline[] = {"parallel.schedule", "parallel.chunks",     "parallel.layers",
                                          "parallel.order",    "parallel.vocabulary", "parallel.barriers"};
constexpr std::string_view kBarriers[] = {"parallel.barriers"};
constexpr std::string_view kGenerated[] = {"parallel.schedule", "parallel.chunks"};

/// Keys at their defaults are not checked, because a saved config lists every key.
void refuse(const io::ConfigTable& table, std::span<const std::string_view> keys, std::string_view meant_for,
            std::string_view here) {
  RunConfig untouched;
  const io::ConfigTable defaults = table_of(untouched);
  for (const auto key : keys) {
    const auto *field = table.find(key), *otherwise = defaults.find(key);
    require(field && otherwise, "config", "there is no key {}", key);
    if (field->toml() != otherwise->toml())
      fail_usage("config", "{} = {} is for {}, and {}", key, field->toml(), meant_for, here);
  }
}

void check_shares(const io::ModelConfig& m, std::int64_t length, const ParallelConfig& p) {
  models::check_heads(m.heads, m.kv_heads, p.tp, models::Sharers::training);
  if (p.sequence && models::row_of(m.family).mixture)
    fail_usage(
        "config",
        "parallel.sequence divides tokens among the tp ranks, each of which routes all tokens of a mixture: set it to "
        "false");
  if (p.sequence && length % p.tp != 0)
    fail_usage("config", "parallel.sequence: rows of {} tokens (train.length) are not divisible by tp {}: change one",
               length, p.tp);
}

/// Whether rows of so many tokens can be shared, and what would fit.
void check_context(const io::ModelConfig& m, std::int64_t length, const ParallelConfig& p, std::string_view key) {
  const auto chunks = nn::ContextShare::kChunks * p.cp;
  if (length % chunks != 0)
    fail_usage("config", "parallel.cp = {} cuts rows into {} chunks, which do not divide {} = {}: {}{} would fit", p.cp,
               chunks, key, length, length > chunks ? fmt::format("{} or ", length / chunks * chunks) : "",
               (length / chunks + 1) * chunks);
  if (p.sequence)
    fail_usage(
        "config",
        "parallel.sequence divides tokens among the tp ranks, and parallel.cp = {} among others: use one of them",
        p.cp);
  if (p.cp_mode != nn::ContextShare::ulysses) return;
  const auto heads = (m.kv_heads > 0 ? m.kv_heads : m.heads) / p.tp;
  if (heads % p.cp == 0) return;
  std::string fits;
  for (std::int64_t n = 1; n <= heads; ++n)
    if (heads % n == 0) fits += fmt::format("{}{}", fits.empty() ? "" : ", ", n);
  fail_usage(
      "config",
      "parallel.cp_mode = \"ulysses\": the {} heads of keys and values of a rank are not divisible by cp {}; cp may "
      "be {}, or use parallel.cp_mode = \"gather\"",
      heads, p.cp, fits);
}

/// Refuses what has not been tested with ranks that share rows.
void check_beside_context(const RunConfig& config) {
  const auto mode = config.parallel.cp_mode;
  if ((mode == nn::ContextShare::ring || mode == nn::ContextShare::zigzag) && config.train.device != "cpu" &&
      config.model.window > 0)
    fail_usage("config",
               "parallel.cp_mode = \"{}\" with model.window runs on a CPU only, and train.device is {}: use "
               "parallel.cp_mode = \"gather\" or \"ulysses\"",
               io::enum_name(mode), config.train.device);
  const auto refuse_beside = [&](bool set, std::string_view what, std::string_view instead) {
    if (set)
      fail_usage("config", "{} is not tested with ranks that share rows (parallel.cp = {}): set parallel.cp = 1, or {}",
                 what, config.parallel.cp, instead);
  };
  const auto dtype = config.train.dtype;
  refuse_beside(is_narrow(dtype), fmt::format("train.dtype = \"{}\"", io::enum_name(dtype)), "train.dtype = \"bf16\"");
}

/// Refuses what computes the attention of a row in another way.
void check_packing(const RunConfig& config) {
  if (!config.data.packing) return;
  for (const auto& [key, ranks] : {std::pair{"cp", config.parallel.cp}, {"pp", config.parallel.pp}})
    if (ranks > 1)
      fail_usage("config", "data.packing is not tested with parallel.{} = {}: set it to 1, or data.packing = false",
                 key, ranks);
}

void check_text(const io::ConfigTable& table, const RunConfig& config, std::string_view family) {
  check_shares(config.model, config.length(), config.parallel);
  check_packing(config);
  if (config.parallel.cp > 1) {
    check_context(config.model, config.length(), config.parallel,
                  config.train.length > 0 ? "train.length" : "model.context");
    check_beside_context(config);
  } else refuse(table, kContext, "rows that ranks share (parallel.cp)", "parallel.cp is 1");
  if (config.length() > config.model.context)
    fail_usage("config", "train.length = {} exceeds model.context = {}, the longest sequence", config.length(),
               config.model.context);
  if (!models::row_of(config.model.family).decoder(config.model).rotary())
    refuse(table, kRotary, "families with rotary positions", family);
  if (!models::row_of(config.model.family).mixture) refuse(table, kExperts, "mixtures of experts", family);
}

/// Refuses what replicas exchange while micro-batches are on their way between stages.
void check_pipeline_on_gpu(const RunConfig& config) {
  const auto& p = config.parallel;
  const auto refuse_beside = [&](bool set, std::string_view what, std::string_view instead) {
    if (set)
      fail_usage(
          "config",
          "{} lets replicas exchange tensors while a pipeline sends micro-batches, which has not been run on GPUs: "
          "set {}, or parallel.pp = 1",
          what, instead);
  };
  refuse_beside(p.zero == 3, "parallel.zero = 3", "parallel.zero = 2");
  refuse_beside(p.dp != 1 && config.model.experts > 0, "a mixture of experts", "parallel.dp = 1");
  refuse_beside(p.dp != 1 && config.sync_batch_norm, "model.sync_batch_norm = true", "parallel.dp = 1");
}

/// Ranks that divide the experts of mixtures.
void check_experts(const io::ConfigTable& table, const RunConfig& config) {
  const auto ep = config.parallel.ep;
  if (ep == 1) return refuse(table, kDivided, "experts that ranks divide (parallel.ep)", "parallel.ep is 1");
  const auto& p = config.parallel;
  if (config.train.device != "cpu" && p.tp > 1)
    fail_usage("config",
               "parallel.ep = {} and parallel.tp = {} have not been run together on GPUs: set one of them to 1, or "
               "train.device = \"cpu\"",
               ep, p.tp);
  if (config.train.device != "cpu" && p.zero > 0 &&
      (config.train.dtype == Compute::bf16 || config.train.dtype == Compute::fp16))
    fail_usage("config",
               "parallel.ep = {} and parallel.zero = {}: 16-bit copies of experts that ranks divide stay whole: set "
               "parallel.zero = 0, or train.dtype = \"f32\"",
               ep, p.zero);
  if (p.pp > 1 && config.train.device != "cpu")
    fail_usage("config", "parallel.ep and parallel.pp have not been run together on GPUs: set one of them to 1");
  if (p.pp > 1 && config.capacity > 0)
    fail_usage(
        "config",
        "model.capacity = {} runs steps again, which pipelines (parallel.pp = {}) cannot: set model.capacity = 0",
        config.capacity, p.pp);
  if (config.adapter.given())
    fail_usage("config", "adapters are trained with all experts on each rank: set parallel.ep = 1");
  if (config.capacity > 0 && config.capacity < kLeastCapacity)
    fail_usage("config", "model.capacity = {} is below {}: use about 1.25, or 0 for room for all tokens",
               config.capacity, kLeastCapacity);
}

/// Sums in a fixed order.
void check_invariant(const RunConfig& config) {
  const auto& p = config.parallel;
  if (!p.invariant) return;
  const auto refuse_beside = [](bool set, std::string_view what, std::string_view instead) {
    if (set)
      fail_usage("config",
                 "parallel.invariant = true and {}: the result would depend on the number of ranks: set {}, or "
                 "parallel.invariant = false",
                 what, instead);
  };
  const auto beside = [&](std::int64_t n, std::string_view axis) {
    refuse_beside(n > 1, fmt::format("parallel.{} = {}", axis, n), fmt::format("parallel.{} = 1", axis));
  };
  beside(p.pp, "pp"), beside(p.cp, "cp"), beside(p.ep, "ep");
  refuse_beside(config.model.experts > 0, "a mixture of experts", "another model.family");
  refuse_beside(io::is_image_family(config.model.family), "a model of images", "another model.family");
  const auto dtype = config.train.dtype;
  refuse_beside(is_narrow(dtype), fmt::format("train.dtype = \"{}\"", io::enum_name(dtype)), "train.dtype = \"bf16\"");
  refuse_beside(config.offload.parameters == Tier::host, "offload.parameters = \"host\"",
                "offload.parameters = \"none\"");
  refuse_beside(p.zero_span != ZeroSpan::all, "parallel.zero_span = \"host\"", "parallel.zero_span = \"all\"");
  refuse_beside(p.wire_weights != WireWeights::compute, "parallel.wire_weights", "parallel.wire_weights = \"compute\"");
  refuse_beside(p.wire_gradients != WireGradients::f32, "parallel.wire_gradients", "parallel.wire_gradients = \"f32\"");
  for (const auto& [key, n] : {std::pair{"train.accumulate", config.train.accumulate}, {"parallel.dp", p.dp}})
    if (n > 0 && !std::has_single_bit(static_cast<std::uint64_t>(n)))
      fail_usage(
          "config",
          "parallel.invariant = true adds pairs, pairs of pairs and so on: {} must be a power of two, got {}; the "
          "nearest are {} and {}",
          key, n, std::bit_floor(static_cast<std::uint64_t>(n)), std::bit_ceil(static_cast<std::uint64_t>(n)));
}

/// Ranks of a pipeline that divide the vocabulary.
void check_vocabulary(const io::ConfigTable& table, const RunConfig& config) {
  const auto& p = config.parallel;
  if (p.vocabulary == VocabularyPlace::stage)
    return refuse(table, kBarriers, "ranks that divide the vocabulary", "parallel.vocabulary is stage");
  const auto refuse_beside = [](bool set, std::string_view what, std::string_view instead) {
    if (set)
      fail_usage("config",
                 "parallel.vocabulary = \"pipeline\" has not been run with {}: set {}, or parallel.vocabulary = "
                 "\"stage\"",
                 what, instead);
  };
  refuse_beside(config.train.device != "cpu", "GPUs", "train.device = \"cpu\"");
  refuse_beside(io::is_image_family(config.model.family), "a model of images, which has no vocabulary",
                "another model.family");
  refuse_beside(config.model.experts > 0, "a mixture of experts", "another model.family");
  refuse_beside(config.adapter.given(), "adapters", "adapter.method = \"none\"");
  refuse_beside(p.tp > 1, fmt::format("parallel.tp = {}, whose ranks divide it, too", p.tp), "parallel.tp = 1");
  refuse_beside(p.cp > 1, fmt::format("parallel.cp = {}", p.cp), "parallel.cp = 1");
  if (p.barriers == 1 && config.train.dtype == Compute::fp16)
    fail_usage("config",
               "parallel.barriers = 1 computes gradients before they are scaled, which vanish in fp16: set "
               "parallel.barriers = 2, or train.dtype = \"bf16\"");
  refuse_beside(config.offload.optimizer != Tier::none, "offload.optimizer", "offload.optimizer = \"none\"");
}

void check_pipeline(const io::ConfigTable& table, const RunConfig& config) {
  const auto& p = config.parallel;
  if (p.pp == 1) return refuse(table, kPipeline, "pipelines", "parallel.pp is 1");
  if (!p.order.empty())
    refuse(table, kGenerated, "orders by name",
           fmt::format("parallel.order = \"{}\" has an order of its own", p.order));
  const auto& kind = pipe::schedule_kind(p.schedule);
  if (p.chunks < kind.least_chunks || p.chunks > kind.most_chunks)
    fail_usage("config", "parallel.schedule = \"{}\" needs parallel.chunks = {}{}, got {}", p.schedule,
               kind.least_chunks, kind.most_chunks > kind.least_chunks ? " or more" : "", p.chunks);
  if (config.train.device != "cpu") check_pipeline_on_gpu(config);
  if (p.cp > 1 && config.train.device != "cpu")
    fail_usage("config", "parallel.cp and parallel.pp have not been run together on GPUs: set one of them to 1");
  if (is_fp8(config.train.dtype))
    fail_usage("config", "train.dtype = \"{}\" keeps a history of all layers on each rank: set parallel.pp = 1",
               io::enum_name(config.train.dtype));
  check_vocabulary(table, config);
}

/// Scaling by anything but a power of two would round gradients, whose bits must not change.
void check_scaler(const TrainConfig& t) {
  for (const auto& [key, value] : {std::pair{"init_scale", t.init_scale},
                                   {"growth_factor", t.growth_factor},
                                   {"backoff_factor", t.backoff_factor},
                                   {"min_scale", t.min_scale}}) {
    int exponent = 0;
    if (value != 0 && std::frexp(value, &exponent) != 0.5)
      fail_usage("config", "train.{} = {} must be a power of two, so that scaling rounds nothing: the nearest is {}",
                 key, value, std::exp2(std::round(std::log2(value))));
  }
}

/// A CPU computes 8-bit floats only where that is asked for by name.
void check_fp8(const RunConfig& config) {
  const auto& t = config.train;
  const bool cpu = t.device == "cpu";
  if (cpu && t.dtype == Compute::fp8)
    fail_usage(
        "config",
        "train.dtype = \"fp8\" is for GPUs of compute capability 8.9 or later (train.device = \"cuda\"); a CPU does "
        "not multiply 8-bit floats: train.dtype = \"bf16\", or \"fp8-emu\" for a slow emulation");
  if (!cpu && t.dtype == Compute::fp8_emu)
    fail_usage("config",
               "train.dtype = \"fp8-emu\" emulates 8-bit floats on a CPU; on a GPU set train.dtype = \"fp8\"");
}

/// What is emulated has been tested on ranks that share a batch, and keep all layers or divide state.
void check_mxfp4(const RunConfig& config) {
  const auto& p = config.parallel;
  if (config.train.device != "cpu")
    fail_usage(
        "config",
        "train.dtype = \"mxfp4-emu\" emulates MXFP4 on a CPU, and train.device is {}: set train.device = \"cpu\", "
        "or train.dtype = \"fp8\"",
        config.train.device);
  for (const auto& [key, ranks] : {std::pair{"tp", p.tp}, {"pp", p.pp}})
    if (ranks > 1)
      fail_usage("config", "train.dtype = \"mxfp4-emu\" is not tested with parallel.{0} = {1}: set parallel.{0} = 1",
                 key, ranks);
  for (const auto& [key, tier] :
       {std::pair{"parameters", config.offload.parameters}, {"activations", config.offload.activations}})
    if (tier != Tier::none)
      fail_usage("config",
                 "train.dtype = \"mxfp4-emu\" is not tested with offload.{0} = \"{1}\": set offload.{0} = \"none\"",
                 key, io::enum_name(tier));
}

/// Layers whose products have operands of few bits.
void check_narrow(const RunConfig& config) {
  const auto& t = config.train;
  if (io::is_image_family(config.model.family))
    fail_usage("config", "train.dtype = \"{}\" is for text, and model.family is {}: set train.dtype to bf16",
               io::enum_name(t.dtype), io::enum_name(config.model.family));
  if (models::row_of(config.model.family).mixture)
    fail_usage("config", "train.dtype = \"{}\" is not tested with mixtures of experts: set train.dtype to bf16",
               io::enum_name(t.dtype));
  if (config.adapter.given())
    fail_usage("config",
               "train.dtype = \"{}\" trains whole models, and adapter.method is lora: set train.dtype to bf16",
               io::enum_name(t.dtype));
}

/// Moments of 8 bits are updated by kernels of CPUs, in memory.
void check_moments(const RunConfig& config) {
  if (config.train.moments == Moments::f32) return;
  if (config.train.device != "cpu")
    fail_usage(
        "config",
        "train.moments = \"8bit\" is for CPUs (train.device = \"cpu\"): no kernel of a GPU updates such moments: "
        "set train.moments = \"f32\"");
  if (config.offload.optimizer == Tier::disk)
    fail_usage("config",
               "offload.optimizer = \"disk\" moves moments of f32, and train.moments is 8bit: set one of them to its "
               "default");
}

/// What [offload] asks for must be possible: nothing is switched off.
void check_offload(const io::ConfigTable& table, const RunConfig& config) {
  const auto& o = config.offload;
  const auto& p = config.parallel;
  const bool cpu = config.train.device == "cpu";
  if (o.optimizer != Tier::host)
    refuse(table, kOffloaded, "optimizers in host memory",
           fmt::format("offload.optimizer is {}", io::enum_name(o.optimizer)));
  if (!o.uses_disk()) refuse(table, kOnDisk, "what lies on a disk", "nothing does (offload.*)");
  if (o.parameters == Tier::none) refuse(table, kMovedWeights, "weights that move", "offload.parameters is none");
  if (o.activations == Tier::none)
    refuse(table, kMovedActivations, "activations that move", "offload.activations is none");
  for (const auto& [key, tier] : {std::pair{"parameters", o.parameters}, {"activations", o.activations}}) {
    if (tier == Tier::host && cpu)
      fail_usage("config",
                 "offload.{} = \"host\" changes nothing on a CPU, where everything lies there: set it to \"none\", or "
                 "to \"disk\"",
                 key);
    if (tier != Tier::none && p.pp > 1)
      fail_usage("config", "offload.{} = \"{}\" does not go together with pipelines: set parallel.pp = 1", key,
                 io::enum_name(tier));
  }
  if (o.parameters != Tier::none && o.optimizer != o.parameters && o.optimizer != Tier::disk)
    fail_usage("config", "offload.parameters = \"{0}\" needs the moments there, too: set offload.optimizer = \"{0}\"",
               io::enum_name(o.parameters));
  if (o.parameters == Tier::host)
    if (const auto what = cannot_keep_weights_on_host(config); !what.empty())
      fail_usage("config", "offload.parameters = \"host\" does not go together with {}: set one of them to its default",
                 what);
  if (o.parameters == Tier::disk && p.zero > 0)
    fail_usage(
        "config",
        "offload.parameters = \"disk\" is for weights that each rank has whole: set parallel.zero = 0 (it is {})",
        p.zero);
  if (o.optimizer != Tier::none)
    if (const auto what = cannot_offload(config, o.optimizer); !what.empty())
      fail_usage("config", "offload.optimizer = \"{}\" does not go together with {}: set one of them to its default",
                 io::enum_name(o.optimizer), what);
  if (!o.uses_disk()) return;
  if (p.ep > 1)
    fail_usage("config",
               "offload.* = \"disk\" is not tested with experts that ranks divide: set parallel.ep = 1 (it is {})",
               p.ep);
  if (!cpu && (o.parameters == Tier::disk || o.activations == Tier::disk))
    fail_usage(
        "config",
        "weights and activations on a disk are for CPUs (train.device = \"cpu\"): on a GPU, set offload.parameters "
        "and offload.activations to \"host\"");
  if (!cpu && (o.parameters != Tier::host || o.resident > 0))
    fail_usage(
        "config",
        "offload.optimizer = \"disk\" of a GPU lets the CPU update all weights: set offload.parameters = \"host\" "
        "and offload.resident = 0 (they are \"{}\" and {})",
        io::enum_name(o.parameters), o.resident);
  if (o.folder.empty()) fail_usage("config", "offload.* = \"disk\" needs a folder on a local disk: set offload.folder");
}

/// 1 would divide by 0. A value too near to 1 for a 64-bit float is 1 here.
void check_betas(const TrainConfig& t) {
  for (const auto& [key, value] : {std::pair{"beta1", t.beta1}, {"beta2", t.beta2}})
    if (value >= 1) fail_usage("config", "train.{} = {} must be below 1", key, value);
}

}  // namespace

std::string_view cannot_offload(const RunConfig& config, Tier tier) {
  const auto& [t, p] = std::tie(config.train, config.parallel);
  if (t.optimizer != OptimizerKind::adamw) return "train.optimizer = \"sgd\"";
  if (tier == Tier::disk) return "";
  if (t.dtype == Compute::fp8) return "train.dtype = \"fp8\"";
  if (p.pp > 1) return "pipelines (parallel.pp)";
  if (p.cp > 1) return "rows that ranks share (parallel.cp)";
  if (config.model.experts > 0) return "mixtures of experts";
  return "";
}

std::string_view cannot_keep_weights_on_host(const RunConfig& config) {
  if (const auto what = cannot_offload(config, Tier::host); !what.empty()) return what;
  if (config.parallel.dp > 1 || config.parallel.tp > 1) return "more than one GPU (parallel.dp, parallel.tp)";
  if (config.adapter.given()) return "adapters, whose base is not trained (adapter.method)";
  return "";
}

void check_config(RunConfig& config) {
  const io::ConfigTable table = table_of(config);
  const auto& t = config.train;
  check_threads(t.threads, "config", "train.threads");
  const auto family = fmt::format("model.family is {}", io::enum_name(config.model.family));
  if (io::is_image_family(config.model.family)) {
    refuse(table, kText, "text", family);
    refuse(table, kExperts, "text", family);
    refuse(table, kContext, "text", family);
  } else {
    refuse(table, kImages, "images", family);
    check_text(table, config, family);
  }
  if (config.model.family == io::Family::simple_cnn) refuse(table, kResnet, "resnet18", family);
  if (config.model.family == io::Family::resnet18 && t.dropout > 0)
    fail_usage("config", "train.dropout = {} is for models that have dropout, and resnet18 has none", t.dropout);
  check_pipeline(table, config);
  check_experts(table, config);
  check_invariant(config);
  if (!config.adapter.given()) {
    refuse(table, kAdapter, "adapters", "adapter.method is none");
    refuse(table, kBase, "the frozen base of an adapter", "adapter.method is none");
  }
  if (config.base.nested && config.base.format != models::BaseFormat::nf4 &&
      config.base.format != models::BaseFormat::fp4)
    fail_usage("config", "model.double is for nf4 and fp4, and model.quantize is {}",
               io::enum_name(config.base.format));
  if (config.base.given() && config.parallel.tp > 1)
    fail_usage("config", "model.quantize = \"{}\" needs all of a layer on each rank: set parallel.tp to 1",
               io::enum_name(config.base.format));
  if (config.adapter.given() && config.init.empty())
    fail_usage("config", "adapter.method = \"lora\" adapts a model that exists: set model.init to its folder");
  const auto optimizer = fmt::format("train.optimizer is {}", io::enum_name(t.optimizer));
  if (t.optimizer == OptimizerKind::sgd) refuse(table, kAdamw, "adamw", optimizer);
  else refuse(table, kSgd, "sgd", optimizer);
  if (t.lr_scaling == LrScaling::none) refuse(table, kScaled, "scaled learning rates", "train.lr_scaling is none");
  if (t.dtype != Compute::fp16) refuse(table, kFp16, "fp16", fmt::format("train.dtype is {}", io::enum_name(t.dtype)));
  else check_scaler(t);
  const auto dtype = fmt::format("train.dtype is {}", io::enum_name(t.dtype));
  if (is_fp8(t.dtype)) check_fp8(config);
  else refuse(table, kFp8, "fp8", dtype);
  if (t.dtype == Compute::mxfp4_emu) check_mxfp4(config);
  if (is_narrow(t.dtype)) check_narrow(config);
  else refuse(table, kNarrow, "fp8 and mxfp4-emu", dtype);
  check_betas(t);
  check_moments(config);
  if (config.parallel.zero == 0)
    refuse(table, kDividedState, "runs that divide their state (parallel.zero)", "parallel.zero is 0");
  if (t.device != "cpu")
    refuse(table, kDividedState, "CPUs, as it is not tested between GPUs", fmt::format("train.device is {}", t.device));
  if (config.parallel.pp > 1)
    refuse(table, kDividedState, "runs without pipelines, with which it is not tested",
           fmt::format("parallel.pp is {}", config.parallel.pp));
  if (config.parallel.ep > 1)
    refuse(table, kDividedState, "runs whose ranks have all experts, as others are not tested",
           fmt::format("parallel.ep is {}", config.parallel.ep));
  if (config.parallel.zero < 3)
    refuse(table, kSharded, "runs that divide weights (parallel.zero = 3)",
           fmt::format("parallel.zero is {}", config.parallel.zero));
  check_offload(table, config);
  if (t.schedule == ScheduleKind::constant) refuse(table, kFalling, "rates that fall", "train.schedule is constant");
  if (t.min_lr > t.lr)
    fail_usage("config", "train.min_lr = {} is above train.lr = {}, the highest learning rate", t.min_lr, t.lr);
  if (t.dtype == Compute::tf32 && t.device == "cpu")
    fail_usage("config",
               "train.dtype = \"tf32\" is for GPUs (train.device = \"cuda\"); a CPU multiplies f32 exactly: "
               "train.dtype = \"f32\"");
  if (t.atomic_sums && t.device == "cpu")
    fail_usage("config",
               "train.atomic_sums is for GPUs (train.device = \"cuda\"); a CPU always adds up in the same order: "
               "train.atomic_sums = false");
  if (t.device != "cpu") models::require_on_gpu(config.model);
  check_preferred_ways(parse_preferred_ways(t.ways, "train.ways"), "train.ways");
  if (!t.ways.empty() && t.device == "cpu")
    fail_usage("config",
               "train.ways = \"{}\" is for GPUs (train.device = \"cuda\"); on a CPU, the instruction set and the shape "
               "determine the kernel: train.ways = \"\"",
               t.ways);
  if (t.optimizer == OptimizerKind::adamw && static_cast<float>(t.eps) == 0)
    fail_usage("config", "train.eps = {} divides 0 by 0 if a weight has had no gradient: set it above 0, 1e-8 is usual",
               t.eps);
  if (t.nesterov && t.momentum == 0)
    fail_usage("config", "train.nesterov needs momentum: set train.momentum, 0.9 is usual");
}

void share_global_batch(RunConfig& config, int world) {
  auto& t = config.train;
  if (t.global_batch == 0) return;
  const auto dp = parallel::fit(mesh_shape(config.parallel), world).dp;
  const auto parts = t.accumulate * dp;
  if (t.batch != TrainConfig().batch && t.batch * parts != t.global_batch)
    fail_usage("config", "train.batch = {} and train.global_batch = {} exclude each other: give one of them", t.batch,
               t.global_batch);
  if (t.global_batch % parts != 0)
    fail_usage("config",
               "train.global_batch = {} is not divisible by {} data-parallel ranks x {} micro-batches "
               "(train.accumulate): choose a multiple of {}, or another train.accumulate",
               t.global_batch, dp, t.accumulate, parts);
  t.batch = t.global_batch / parts;
}

}  // namespace hpcdl::train
