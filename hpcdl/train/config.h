#pragma once
// All settings of `hpcdl train`. Each field is listed once, in visit(): see io/config_visitor.h.

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/data/chat_mask.h"
#include "hpcdl/io/config_visitor.h"
#include "hpcdl/io/model_config.h"
#include "hpcdl/models/adapter_options.h"
#include "hpcdl/models/base_options.h"
#include "hpcdl/models/fp8_options.h"
#include "hpcdl/models/image_config.h"
#include "hpcdl/nn/context_share.h"
#include "hpcdl/optim/schedule.h"

namespace hpcdl {

enum class Compute { f32, tf32, bf16, fp16, fp8, fp8_emu, mxfp4_emu };
/// Whether products of layers have operands of 8-bit floats.
constexpr bool is_fp8(Compute c) { return c == Compute::fp8 || c == Compute::fp8_emu; }
/// Whether they have operands of 8 bits or fewer.
constexpr bool is_narrow(Compute c) { return is_fp8(c) || c == Compute::mxfp4_emu; }
enum class OptimizerKind { adamw, sgd };
enum class Moments { f32, eight_bit };
/// Where state lies: on the device that computes, in host memory, or on a disk.
enum class Tier { none, host, disk };
enum class WireWeights { compute, int8 };
enum class WireGradients { f32, bf16, int4 };
enum class VocabularyPlace { stage, pipeline };  // where the tables of a vocabulary lie in a pipeline
enum class ZeroSpan { all, host };               // which ranks divide the state of the training among themselves

namespace io {
template <> struct EnumNames<ScheduleKind> {
  static constexpr std::pair<ScheduleKind, std::string_view> values[] = {{ScheduleKind::constant, "constant"},
                                                                         {ScheduleKind::cosine, "cosine"},
                                                                         {ScheduleKind::linear, "linear"},
                                                                         {ScheduleKind::wsd, "wsd"}};
};
template <> struct EnumNames<LrScaling> {
  static constexpr std::pair<LrScaling, std::string_view> values[] = {
      {LrScaling::none, "none"}, {LrScaling::linear, "linear"}, {LrScaling::sqrt, "sqrt"}};
};
template <> struct EnumNames<OptimizerKind> {
  static constexpr std::pair<OptimizerKind, std::string_view> values[] = {{OptimizerKind::adamw, "adamw"},
                                                                          {OptimizerKind::sgd, "sgd"}};
};
template <> struct EnumNames<Moments> {
  static constexpr std::pair<Moments, std::string_view> values[] = {{Moments::f32, "f32"},
                                                                    {Moments::eight_bit, "8bit"}};
};
template <> struct EnumNames<Tier> {
  static constexpr std::pair<Tier, std::string_view> values[] = {
      {Tier::none, "none"}, {Tier::host, "host"}, {Tier::disk, "disk"}};
};
template <> struct EnumNames<WireWeights> {
  static constexpr std::pair<WireWeights, std::string_view> values[] = {{WireWeights::compute, "compute"},
                                                                        {WireWeights::int8, "int8"}};
};
template <> struct EnumNames<WireGradients> {
  static constexpr std::pair<WireGradients, std::string_view> values[] = {
      {WireGradients::f32, "f32"}, {WireGradients::bf16, "bf16"}, {WireGradients::int4, "int4"}};
};
template <> struct EnumNames<VocabularyPlace> {
  static constexpr std::pair<VocabularyPlace, std::string_view> values[] = {{VocabularyPlace::stage, "stage"},
                                                                            {VocabularyPlace::pipeline, "pipeline"}};
};
template <> struct EnumNames<ZeroSpan> {
  static constexpr std::pair<ZeroSpan, std::string_view> values[] = {{ZeroSpan::all, "all"}, {ZeroSpan::host, "host"}};
};
template <> struct EnumNames<data::ChatMask> {
  static constexpr std::pair<data::ChatMask, std::string_view> values[] = {{data::ChatMask::assistant, "assistant"},
                                                                           {data::ChatMask::completion, "completion"},
                                                                           {data::ChatMask::all, "all"}};
};
template <> struct EnumNames<nn::ContextShare::Mode> {
  static constexpr std::pair<nn::ContextShare::Mode, std::string_view> values[] = {
      {nn::ContextShare::gather, "gather"},
      {nn::ContextShare::ulysses, "ulysses"},
      {nn::ContextShare::ring, "ring"},
      {nn::ContextShare::zigzag, "zigzag"}};
};
template <> struct EnumNames<Compute> {
  static constexpr std::pair<Compute, std::string_view> values[] = {
      {Compute::f32, "f32"}, {Compute::tf32, "tf32"},       {Compute::bf16, "bf16"},          {Compute::fp16, "fp16"},
      {Compute::fp8, "fp8"}, {Compute::fp8_emu, "fp8-emu"}, {Compute::mxfp4_emu, "mxfp4-emu"}};
};
}  // namespace io

namespace train {

struct DataConfig {
  std::vector<std::string> text, chat;
  std::string tokenizer, chat_template;
  data::ChatMask mask = data::ChatMask::assistant;
  bool packing = false;
  std::filesystem::path cache;
  std::int64_t vocab_size = 4096;
  double val_fraction = 0.05;
  bool replace_invalid = false;
  std::string images;
  std::int64_t procedural = 50'000;
  int workers = 2, prefetch = 4, crop = 4;
  bool flip = true, random_resized = false, normalise = true, coarse = false;
  double mixup = 0;

  void visit(auto&& f) {
    f("text", text, "files or folders of .txt, .md and .jsonl to train on; a list, or one name", {.per_rank = true});
    f("chat", chat,
      "files or folders of .jsonl, a conversation {\"messages\": [...]} on each line, to train on instead of `text`",
      {.per_rank = true});
    f("template", chat_template,
      "file with the chat template of `chat`; empty: that of model.init, or of the folder of the tokenizer",
      {.per_rank = true});
    f("mask", mask,
      "chat: the tokens that are learned: assistant, those of all turns of the assistant; completion, those of its "
      "last turn; all");
    f("packing", packing, "rows hold several conversations, or documents, none of which attends to another");
    f("tokenizer", tokenizer, "tokenizer.json or a model folder; empty: trained on the text", {.per_rank = true});
    f("cache", cache,
      "folder for the trained tokenizer and the token shards; empty: $XDG_CACHE_HOME/hpcdl/data, or cache/ of the run "
      "if that cannot be written",
      {.per_rank = true});
    f("vocab_size", vocab_size, "size of a trained tokenizer", {.min = 257, .max = 1 << 24});
    f("val_fraction", val_fraction, "share of the documents kept for evaluation", {.min = 0, .max = 0.9});
    f("replace_invalid", replace_invalid, "replace bytes that are not UTF-8 with U+FFFD instead of stopping the run");
    f("images", images,
      "images to train on: CIFAR-10 or CIFAR-100 as published (folder or archive), or a folder with a sub-folder for "
      "each class; empty: a procedural set like CIFAR-10",
      {.per_rank = true});
    f("coarse", coarse, "CIFAR-100: use its 20 coarse classes instead of the 100 fine ones");
    f("procedural", procedural,
      "number of training images of the procedural set; it has a fifth as many for evaluation",
      {.min = 1, .max = 1 << 30});
    f("workers", workers, "threads that decode and augment images; 0: the training thread does it",
      {.min = 0, .max = 256, .per_rank = true});
    f("prefetch", prefetch, "batches of images that are prepared in advance",
      {.min = 0, .max = 4096, .per_rank = true});
    f("crop", crop, "pad images with this many black pixels and cut out a random part; 0: no crop",
      {.min = 0, .max = 1 << 12});
    f("flip", flip, "mirror every second image, at random");
    f("random_resized", random_resized, "use a random part of each image, resized, instead of `crop`");
    f("mixup", mixup, "mix images in pairs, with weights from Beta(mixup, mixup); 0: no mixup", {.min = 0, .max = 100});
    f("normalise", normalise, "scale pixels to mean 0 and deviation 1, for each channel");
  }
};

struct TrainConfig {
  std::int64_t steps = 1000, epochs = 0, batch = 8, global_batch = 0, accumulate = 1, length = 0;
  double lr = 1e-3;
  double min_lr = 0;
  std::int64_t warmup = 0;
  LrScaling lr_scaling = LrScaling::none;
  std::int64_t base_batch = 0;
  ScheduleKind schedule = ScheduleKind::cosine;
  OptimizerKind optimizer = OptimizerKind::adamw;
  Moments moments = Moments::f32;
  double momentum = 0.9;
  bool nesterov = false;
  double label_smoothing = 0;
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, clip = 1;
  double dropout = 0;
  std::uint64_t seed = 1;
  Compute dtype = Compute::f32;
  Fp8Scales fp8_scaling = Fp8Scales::delayed;
  std::int64_t fp8_first = 1, fp8_last = 1;
  double init_scale = 65536, growth_factor = 2, backoff_factor = 0.5, min_scale = 1;
  std::int64_t growth_interval = 2000;
  bool recompute = false, atomic_sums = false;
  std::int64_t eval_every = 0, eval_batches = -1, log_every = 1;
  int threads = 0;
  std::string device = "cpu", ways;
  std::int64_t memory_limit = 0;

  void visit(auto&& f) {
    f("steps", steps, "optimizer steps to take", {.min = 1, .max = 1e12});
    f("epochs", epochs, "passes over the training data, instead of `steps`; 0: use `steps`", {.min = 0, .max = 1e6});
    f("batch", batch, "sequences or images per micro-batch, for each data-parallel rank", {.min = 1, .max = 1 << 20});
    f("global_batch", global_batch,
      "instead of `batch`: sequences or images per optimizer step, for all ranks and micro-batches together, so that "
      "steps have the same size on any number of ranks; 0: use `batch`",
      {.min = 0, .max = 1 << 30});
    f("accumulate", accumulate, "micro-batches per optimizer step", {.min = 1, .max = 1 << 20});
    f("length", length, "text: tokens of a row of a batch; 0: model.context", {.min = 0, .max = 1 << 30});
    f("lr", lr, "highest learning rate", {.min = 0, .max = 1e3});
    f("min_lr", min_lr, "learning rate at the end", {.min = 0, .max = 1e3});
    f("warmup", warmup, "steps of linear warm-up", {.min = 0, .max = 1e12});
    f("lr_scaling", lr_scaling,
      "how lr and min_lr grow with the samples of a step (batch x accumulate x dp): none; linear, for SGD; sqrt, for "
      "AdamW");
    f("base_batch", base_batch,
      "lr_scaling: samples of a step for which lr was chosen; 0: those of one rank, batch x accumulate",
      {.min = 0, .max = 1 << 30});
    f("schedule", schedule, "shape of the learning rate over time");
    f("optimizer", optimizer, "adamw or sgd");
    f("moments", moments,
      "AdamW: type of the moments: f32; 8bit, on CPUs, codes in blocks of 256 with a scale each, 2.03 bytes a weight "
      "instead of 8");
    f("momentum", momentum, "sgd: share of the previous direction that is kept", {.min = 0, .max = 0.999999});
    f("nesterov", nesterov, "sgd: use Nesterov momentum");
    f("label_smoothing", label_smoothing, "images: share of each target that is spread over all classes",
      {.min = 0, .max = 0.999999});
    f("weight_decay", weight_decay,
      "weight decay of matrices; adamw applies it separately from the gradient, sgd adds it to the gradient",
      {.min = 0, .max = 100});
    f("beta1", beta1, "AdamW: decay of the mean, below 1", {.min = 0, .max = 1});
    f("beta2", beta2, "AdamW: decay of the variance, below 1", {.min = 0, .max = 1});
    f("eps", eps, "AdamW: added to the root of the variance", {.min = 0, .max = 1});
    f("clip", clip, "largest global gradient norm; 0: no clipping", {.min = 0, .max = 1e9});
    f("dropout", dropout, "probability of dropping an activation", {.min = 0, .max = 0.95});
    f("seed", seed, "seed of weights, order of data and dropout", {.min = 0});
    f("dtype", dtype,
      "type of activations; weights and optimizer stay f32; tf32: f32, with products of 11 significant bits on a GPU; "
      "fp16 scales the loss, and is no faster than f32 on a CPU; fp8: bf16, but the layers of the blocks multiply "
      "8-bit "
      "floats, on GPUs of compute capability 8.9 or later; fp8-emu: the same on a CPU, as an emulation, which is slow; "
      "mxfp4-emu: an emulation of products of MXFP4 on a CPU");
    f("fp8_scaling", fp8_scaling,
      "fp8: where scales come from: delayed, the largest magnitude of the tensor in the last 16 steps; current, its "
      "largest magnitude; row, that of each row");
    f("fp8_first", fp8_first, "fp8, mxfp4-emu: first blocks that stay in bf16", {.min = 0, .max = 1 << 20});
    f("fp8_last", fp8_last, "fp8, mxfp4-emu: last blocks that stay in bf16", {.min = 0, .max = 1 << 20});
    f("init_scale", init_scale, "fp16: initial scale of the mean loss of a micro-batch; a power of two",
      {.min = 1e-9, .max = 1e30});
    f("growth_factor", growth_factor, "fp16: factor by which the loss scale grows", {.min = 1, .max = 1024});
    f("growth_interval", growth_interval, "fp16: steps in a row without overflow before the loss scale grows",
      {.min = 1, .max = 1e9});
    f("backoff_factor", backoff_factor,
      "fp16: factor for the loss scale when gradients overflow; such a step changes no weights",
      {.min = 1e-6, .max = 0.999999});
    f("min_scale", min_scale, "fp16: smallest loss scale; an overflow at this scale ends the run",
      {.min = 1e-9, .max = 1e30});
    f("atomic_sums", atomic_sums,
      "a GPU may add up gradients of attention in another order each time, where that is faster: runs no longer repeat "
      "their bits");
    f("ways", ways,
      "GPU: ways of computing to use wherever they are possible, such as \"attention=cudnn conv2d=own\"; empty: the "
      "fastest known ones");
    f("recompute", recompute, "recompute activations in the backward pass: less memory, more time, the same result");
    f("eval_every", eval_every, "steps between evaluations; 0: at the end, and with `epochs` after each epoch",
      {.min = 0, .max = 1e12});
    f("eval_batches", eval_batches,
      "micro-batches of one evaluation, for each data-parallel rank; 0: all; -1: 20 for text, all for images",
      {.min = -1, .max = 1e9});
    f("log_every", log_every, "steps between lines of metrics", {.min = 1, .max = 1e12});
    f("device", device, "where to train: cpu, cuda, or cuda:N", {.per_rank = true});
    f("memory_limit", memory_limit, "memory that each rank may take on its device; 0: all that is free",
      {.min = 0, .max = 1e18, .unit = io::Unit::bytes, .per_rank = true});
    f("threads", threads, "CPU threads; 0: all usable", {.min = 0, .max = 4096, .per_rank = true});
  }
};

struct CheckpointConfig {
  io::Every every = io::Every::time(600);
  std::int64_t keep = 2;
  std::string resume = "auto";
  bool asynchronous = true;

  void visit(auto&& f) {
    f("every", every,
      "interval between checkpoints; one is also written at the end, and when Ctrl-C or SIGTERM stops the run",
      {.min = 0, .max = 1e12});
    f("keep", keep, "newest checkpoints to keep; 0: all", {.min = 0, .max = 1 << 20});
    f("resume", resume, "auto: the newest valid checkpoint of the output folder; none; or a checkpoint folder");
    f("asynchronous", asynchronous,
      "a thread writes checkpoints while the run goes on, from a copy in host memory if there is room for one");
  }
};

struct ParallelConfig {
  std::int64_t pp = 1, dp = 0, cp = 1, tp = 1, ep = 1, chunks = 1, zero = 0, gather_ahead = 1, barriers = 2;
  std::string schedule = "1f1b", order;
  std::vector<std::int64_t> layers;
  VocabularyPlace vocabulary = VocabularyPlace::stage;
  ZeroSpan zero_span = ZeroSpan::all;
  WireWeights wire_weights = WireWeights::compute;
  WireGradients wire_gradients = WireGradients::f32;
  nn::ContextShare::Mode cp_mode = nn::ContextShare::gather;
  double bucket_mb = 25, first_bucket_mb = 1;
  bool overlap = true, sequence = false, time_exchange = false, invariant = false;

  void visit(auto&& f) {
    f("pp", pp, "ranks that share the layers: each has some of them, in a row; see train.accumulate",
      {.min = 1, .max = 256});
    f("schedule", schedule,
      "with pp: the order of forwards and backwards of micro-batches, by the names of hpcdl pipe show --help");
    f("order", order,
      "with pp, instead of schedule and chunks: a file with the order of each rank, as hpcdl pipe show --order takes "
      "it");
    f("chunks", chunks, "with pp: stages of each rank; interleaved and zbv need several", {.min = 1, .max = 64});
    f("layers", layers,
      "with pp: how many layers each stage has, where an embedding and a head count as layers; empty: stages of about "
      "equal cost",
      {.min = 1, .max = 1 << 20});
    f("vocabulary", vocabulary,
      "with pp, text, on CPUs: stage, the embedding is in the first stage and the head in the last one; pipeline, each "
      "rank has some rows of both tables, so that the head weighs on no stage alone");
    f("barriers", barriers,
      "with vocabulary = \"pipeline\": how often all ranks wait for each other in a micro-batch; with 1 they send and "
      "keep more",
      {.min = 1, .max = 2});
    f("dp", dp, "ranks that share each batch; 0: all ranks / (pp * cp * tp)", {.min = 0, .max = 1 << 20});
    f("invariant", invariant,
      "adds the gradients of micro-batches in an order that does not depend on dp, so that the same dp x "
      "train.accumulate gives the same bits: both are powers of two. Takes memory for log2(train.accumulate) more "
      "gradients");
    f("cp", cp, "text: ranks that share the tokens of each row; 2 cp divides train.length", {.min = 1, .max = 1 << 16});
    f("cp_mode", cp_mode,
      "with cp, what attention exchanges: gather, the keys and values of the whole row; ulysses, parts of the rows for "
      "heads, so that cp divides model.kv_heads; zigzag, keys and values that go from rank to rank, of which a rank "
      "holds few at a time; ring, the same with uneven work. The last two are for CPUs");
    f("tp", tp, "ranks that share each weight; pp * dp * cp * tp is the number of ranks", {.min = 1, .max = 1 << 20});
    f("ep", ep,
      "mixtures: of the dp * cp ranks, those that divide the experts among themselves; it divides dp * cp and "
      "model.experts",
      {.min = 1, .max = 1 << 16});
    f("zero", zero,
      "what the dp x cp ranks divide among themselves: 0: nothing; 1: the state of the optimizer; 2: gradients, too; "
      "3: "
      "weights, too. The result is the same",
      {.min = 0, .max = 3});
    f("zero_span", zero_span,
      "with zero, which ranks divide it: all that share a batch; host: those of each host, so that weights never "
      "travel "
      "between hosts");
    f("wire_weights", wire_weights,
      "on CPUs with zero = 3, as which weights travel: compute: the type that products read; int8: blocks of 8-bit "
      "integers. For slow links; changes the result a little");
    f("wire_gradients", wire_gradients,
      "on CPUs with zero, as which gradients travel; sums are f32. int4: blocks of 4-bit integers. For slow links; "
      "changes the result a little");
    f("gather_ahead", gather_ahead,
      "with zero = 3: blocks of the model that are gathered before they are needed, while earlier ones compute",
      {.min = 0, .max = 64});
    f("bucket_mb", bucket_mb, "MiB of gradients that are reduced together; 0: each tensor separately",
      {.min = 0, .max = 1 << 20});
    f("first_bucket_mb", first_bucket_mb, "MiB of the first bucket, small so that the first reduction starts early",
      {.min = 0, .max = 1 << 20});
    f("overlap", overlap,
      "reduce while the backward pass still runs; false: wait for every reduction. The result is the same");
    f("time_exchange", time_exchange,
      "on GPUs: put time stamps around reductions, so that the metrics say how long they took and how much of it was "
      "hidden; on CPUs they always do");
    f("sequence", sequence,
      "with tp: each rank computes norms and dropout for a part of the tokens, which takes less memory and sends the "
      "same bytes");
  }
};

struct OffloadConfig {
  Tier optimizer = Tier::none;
  Tier parameters = Tier::none, activations = Tier::none;
  std::optional<std::int64_t> interleave;
  std::int64_t resident = 0;
  double activation_share = 1;
  std::filesystem::path folder;

  void visit(auto&& f) {
    f("optimizer", optimizer,
      "where AdamW's moments lie: none: with the weights; host: in host memory, and the CPU updates weights of a GPU; "
      "disk: in offload.folder, on a GPU with parameters = \"host\". The result is the same. On a CPU, none and host "
      "are "
      "the same memory");
    f("interleave", interleave,
      "with optimizer = \"host\": every so many-th part of the weights is updated on the GPU, 0: none; unset: as fast "
      "as "
      "the measured rates allow. The result is the same",
      {.min = 0, .max = 64});
    f("parameters", parameters,
      "where weights lie: none: in memory; host, for GPUs: in host memory, with their gradients; disk, for CPUs: in "
      "offload.folder. The blocks of the model come from there when they are needed. The result is the same");
    f("resident", resident, "with parameters: so many blocks of the model stay in memory", {.min = 0, .max = 1 << 20});
    f("activations", activations,
      "where activations wait for the backward pass: none: in memory; host, for GPUs: in host memory; disk, for CPUs: "
      "in offload.folder. The result is the same");
    f("activation_share", activation_share,
      "with activations: the share of their bytes that may leave memory, about the same of every block",
      {.min = 0, .max = 1});
    f("folder", folder,
      "with \"disk\": a folder on a local disk. Room for everything is reserved there before the first step, and free "
      "again "
      "when the process ends");
  }
  bool uses_disk() const { return optimizer == Tier::disk || parameters == Tier::disk || activations == Tier::disk; }
};

/// Which rank this process is and how it finds the others, if no launcher says so: see comm/bootstrap.
struct DistConfig {
  int rank = -1, world = 0, local_rank = -1, local_world = 0;
  std::string master, method = "auto", transport = "auto";
  double init_timeout = 300, timeout = 600;

  void visit(auto&& f) {
    f("rank", rank, "this process's rank; -1: as torchrun, srun, mpirun or hpcdl launch says",
      {.min = -1, .max = 1 << 20, .per_rank = true});
    f("world", world, "number of ranks; 0: as the launcher says", {.min = 0, .max = 1 << 20, .per_rank = true});
    f("local_rank", local_rank, "rank among those of this host; -1: determined automatically",
      {.min = -1, .max = 1 << 20, .per_rank = true});
    f("local_world", local_world, "ranks on this host; 0: determined automatically",
      {.min = 0, .max = 1 << 20, .per_rank = true});
    f("master", master, "HOST:PORT at which rank 0 listens; empty: as the launcher says", {.per_rank = true});
    f("method", method,
      "how ranks find rank 0: auto, env, mpi, tcp://HOST:PORT, or file://PATH in a folder that all ranks see",
      {.per_rank = true});
    f("transport", transport, "what moves bytes between CPUs: auto, mpi or tcp");
    f("init_timeout", init_timeout, "time within which all ranks must connect",
      {.min = 1, .max = 1e6, .unit = io::Unit::seconds});
    f("timeout", timeout,
      "time after which the run gives up a collective that does not end, and names the rank that it waits for",
      {.min = 1, .max = 1e6, .unit = io::Unit::seconds});
  }
};

/// [model]: for text and for images; `family` says which.
struct ModelSection {
  io::ModelConfig& text;
  models::ImageConfig& image;
  bool& sync_batch_norm;
  double& capacity;
  std::string& init;
  models::BaseOptions& base;

  void visit(auto&& f) {
    f("init", init,
      "text: a model folder, or a name in the local Hugging Face cache, whose weights and tokenizer the run starts "
      "from; the other keys of [model] come from its config.json",
      {.per_rank = true});
    base.visit(f);
    text.visit(f);
    f("classes", image.classes, "images: number of classes; 0: as many as the data have", {.min = 0, .max = 1 << 24});
    f("stem", image.stem, "resnet18: first layers; cifar keeps all pixels, imagenet keeps a sixteenth of them");
    f("size", image.size, "images: rows and columns after resizing; 0: 32, or 224 with the imagenet stem",
      {.min = 0, .max = 1 << 14});
    f("channels", image.width, "images: channels of the first layer; those of all other layers are multiples of it",
      {.min = 1, .max = 1 << 14});
    f("sync_batch_norm", sync_batch_norm,
      "images: batch norms use the statistics of all data-parallel ranks' batches together; useful if the batch of one "
      "rank is too small");
    f("capacity", capacity,
      "with parallel.ep: room for this many times the tokens that a rank sends to another if it chooses all experts "
      "equally often; a step that needs more is run again with more. 0: room for all. The result is the same",
      {.min = 0, .max = 1 << 20});
  }
};

struct RunConfig {
  io::ModelConfig model;
  models::ImageConfig image = {.classes = 0};  // without the family, which is model.family
  bool sync_batch_norm = false;                // of [model]
  double capacity = 0;                         // of [model]
  std::string init;                            // of [model]; see train/init.h
  models::BaseOptions base;                    // of [model]
  models::AdapterOptions adapter;
  DataConfig data;
  TrainConfig train;
  ParallelConfig parallel;
  OffloadConfig offload;
  DistConfig dist;
  CheckpointConfig checkpoint;
  std::filesystem::path output;

  RunConfig() = default;
  RunConfig(const RunConfig&) = delete;  // a ConfigTable points into it
  void visit(auto&& f) {
    ModelSection both{model, image, sync_batch_norm, capacity, init, base};
    f.section("model", both);
    f.section("adapter", adapter);
    f.section("data", data);
    f.section("train", train);
    f.section("parallel", parallel);
    f.section("offload", offload);
    f.section("dist", dist);
    f.section("checkpoint", checkpoint);
    f("output", output, "folder of the run: model/, checkpoints/, metrics.jsonl, tensorboard/, config.toml");
  }
  /// Text: tokens of a row of a batch.
  std::int64_t length() const { return train.length > 0 ? train.length : model.context; }
};

}  // namespace train
}  // namespace hpcdl
