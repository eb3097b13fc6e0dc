#include "hpcdl/models/language_model.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "hpcdl/core/available_memory.h"
#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/models/adapt.h"
#include "hpcdl/models/adapter_choices.h"
#include "hpcdl/models/adapter_files.h"
#include "hpcdl/models/bind.h"
#include "hpcdl/models/blocks.h"
#include "hpcdl/models/choose_load.h"
#include "hpcdl/models/compressed_config.h"
#include "hpcdl/models/create.h"
#include "hpcdl/models/decoder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/fingerprint.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/host_layers.h"
#include "hpcdl/models/inference_type.h"
#include "hpcdl/models/loaded_weights.h"
#include "hpcdl/models/packed_weights.h"
#include "hpcdl/models/quantize.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/expert_balance/expert_balance.h"
#include "hpcdl/ops/lm_head_gradient/lm_head_gradient.h"
#include "hpcdl/ops/lm_head_loss/lm_head_loss.h"
#include "hpcdl/ops/scale/scale.h"
#include "hpcdl/ops/vocabulary/vocabulary.h"
#include "hpcdl/quant/codecs.h"

namespace hpcdl::models {
namespace {

Var capped(const Var& logits, const io::ModelConfig& c) {
  return c.logit_cap > 0 ? scale(logits, {.cap = static_cast<float>(c.logit_cap)}) : logits;
}

io::ModelConfig resolved(io::ModelConfig c) {
  resolve(c);
  return c;
}

/// Initial values of what this rank has of a parameter, in any floating-point type.
OwnedTensor drawn(Pool& pool, const nn::Param& p, const Rng& rng, DType dtype) {
  constexpr std::int64_t kChunk = 1 << 22;
  OwnedTensor t({p.spec.shape, dtype});
  Stream s(pool);
  OwnedTensor wide({{dtype == DType::f32 ? 0 : std::min(p.spec.size(), kChunk)}, DType::f32});
  const auto draw = [&](std::int64_t at, std::int64_t whole, std::int64_t count) {
    if (dtype == DType::f32) return draw_values(pool, p, rng, whole, count, t.tensor.ptr<float>() + at);
    for (std::int64_t i = 0; i < count; i += kChunk) {
      const std::int64_t n = std::min(kChunk, count - i);
      draw_values(pool, p, rng, whole + i, n, wide.tensor.ptr<float>());
      Cast::forward(s, Tensor(t.tensor.ptr<std::byte>() + (at + i) * dtype_bytes(dtype), {{n}, dtype}),
                    View(wide.tensor.data(), {{n}, DType::f32}), {.to = dtype});
    }
  };
  if (p.part.all()) draw(0, 0, p.spec.size());
  else for_each_run(p.part, draw);
  return t;
}

const nn::Codec& codec_of(const BaseOptions& base) { return *quant::find_codec(io::enum_name(base.format)); }

/// Attaches the adapter, if there is one.
std::function<void(Decoder&)> attaching(const std::optional<AdapterFolder>& adapter) {
  if (!adapter) return {};
  return [&](Decoder& d) {
    attach(d, adapter->options(), [&](const std::string& layer) { return adapter->rank(layer); });
  };
}

std::function<void(Decoder&)> multiplying(const Fp8Options& fp8) {
  if (!fp8.on) return {};
  return [&](Decoder& d) { d.multiply_in_few_bits(fp8); };
}

}  // namespace

struct LanguageModel::Impl {
  io::ModelConfig config;
  Sharing sharing;  // these three are declared before the model, which points to them
  ExpertRanks experts;
  VocabularyRanks vocabulary;
  Decoder model;
  std::unique_ptr<WeightFiles> files;     // mapped models
  std::vector<io::Prefetch> reading;      // declared after files: stops before the mapping ends
  std::optional<LoadedWeights> weights;   // of files that are not mapped
  std::int64_t vram = 0;                  // the most bytes of weights on a device; 0: all
  std::optional<HostLayers> host_layers;  // of a model on a device where they do not fit
  std::string loading;
  std::vector<Buffer> own;      // tensors in no file, or there with another type
  DType compute = DType::none;  // that was asked for

  AdapterOptions adapter;                                        // of a model that was opened for adapting
  std::filesystem::path base;                                    // of that model
  BaseOptions base_options;                                      // how it is held
  std::optional<AdapterFolder> adding;                           // an adapter that is used
  std::vector<std::string> choices;                              // names of the adapters among which texts choose
  std::vector<std::shared_ptr<nn::AdapterSet>> sets_of_choices;  // of each layer

  /// `change`: for the modules of the model, once their parameters have names.
  Impl(io::ModelConfig c, Sharing s, Sharers sharers, const std::function<void(Decoder&)>& change = {},
       ExpertRanks e = {}, VocabularyRanks v = {})
      : config(resolved(std::move(c))),
        sharing(std::move(s)),
        experts(std::move(e)),
        vocabulary(std::move(v)),
        model(config, row_of(config.family).decoder(config)) {
    for_each([](const std::string& name, nn::Param& p) { p.name = name; });
    if (change) change(model);
    if (sharing && sharing->size() == 1) sharing = {};
    if (experts && experts->size() == 1) experts = {};
    if (vocabulary && vocabulary->size() == 1) vocabulary = {};
    if (sharing && !config.compressed.empty())
      fail_usage("model",
                 "ranks that share the layers hold no compressed ones: use one rank (parallel.tp = 1), or start from "
                 "the original model");
    if (experts) model.divide_experts(*experts);
    if (vocabulary) model.divide_vocabulary(*vocabulary);
    if (sharing) model.share(*sharing, sharers, config.quant.has_value());  // quantised rows are found whole
  }

  std::vector<std::string> names() {
    std::vector<std::string> list;
    for_each([&](const std::string& name, nn::Param&) { list.push_back(name); });
    return list;
  }

  template <class F> void for_each(F f) { nn::for_each_param(model, f); }

  /// The value of a parameter in the adapter that is used, in f32; nothing if it has none.
  std::optional<Tensor> adapted_value(const std::string& name, const nn::Param& p) {
    if (!nn::is_of_adapter(name) && !adding->find(name)) return std::nullopt;
    const View v = adding->at(name, p.spec.shape);
    const Spec spec{v.shape(), DType::f32};
    const Tensor t(own.emplace_back(spec.bytes()).data(), spec);
    convert_elements(t, v);
    return t;
  }

  void add_choices(const std::filesystem::path& folder, const io::LoadOptions& load, const Binder& binder,
                   DType matrices);
  std::int64_t bytes_of_choices() const {
    std::int64_t all = 0;
    for (const auto& set : sets_of_choices) all += set->bytes();
    return all;
  }
  Tensor frozen_value(const nn::Param& p, const Binder& binder, const ComputeType& type, bool described);
  bool quantizes(const nn::Weight& w) const;
  bool decoded_is_faster(Device device);
  void add_quantized(nn::Weight& w, const Binder& binder, Pool* pool, StateTable& table);

  const HostLayers& keep_layers_on_host(const StateTable& table, std::int64_t others, Device device);

  std::unique_ptr<StateTable> table() {
    std::vector<nn::Param*> params;
    for_each([&](const std::string&, nn::Param& p) { params.push_back(&p); });
    return std::make_unique<StateTable>(std::move(params));
  }
};

const HostLayers& LanguageModel::Impl::keep_layers_on_host(const StateTable& table, std::int64_t others,
                                                           Device device) {
  host_layers.emplace(
      table, config.layers, [&](std::string_view name) { return model.layer_of(name); }, others, vram, device);
  model.load_from(&*host_layers);
  loading = host_layers->describe();
  return *host_layers;
}

void LanguageModel::to_device(const Stream& s) {
  const bool there = s.device().is_cuda();
  if (!there && impl_->vram == 0) return;
  if (there) require_on_gpu(impl_->config);
  if (impl_->weights && impl_->weights->streams())
    fail_usage("model", "weights that stream from files run on a CPU only: leave out --ram, or --device");
  auto& angles = impl_->model.angles();
  std::vector<Tensor*> others;
  std::int64_t beside = 0;
  for (auto& a : angles) {
    a.first(impl_->config.context);
    others.push_back(&a.table.tensor), beside += a.table.tensor.bytes();
  }
  for (const auto& set : impl_->sets_of_choices) {
    const auto tensors = set->tensors();
    others.insert(others.end(), tensors.begin(), tensors.end());
    beside += set->bytes();
  }
  std::function<Tensor(const StateEntry&)> elsewhere;
  if (impl_->vram > 0) {
    const auto& layers = impl_->keep_layers_on_host(*state_, beside, s.device());
    elsewhere = [&layers](const StateEntry& e) { return layers.place(e); };
  }
  moved()->to_device(s, others, elsewhere);
  if (!there) return;
  for (auto& a : angles) a.table.buffer = {};
  for (const auto& set : impl_->sets_of_choices) set->release_host();
}

LanguageModel::LanguageModel(std::unique_ptr<Impl> impl) : Trainable(impl->table()), impl_(std::move(impl)) {}
LanguageModel::LanguageModel(LanguageModel&&) noexcept = default;
LanguageModel& LanguageModel::operator=(LanguageModel&&) noexcept = default;
LanguageModel::~LanguageModel() = default;

LanguageModel LanguageModel::create(const io::ModelConfig& config, std::optional<std::uint64_t> seed,
                                    bool with_gradients, Sharing sharing, const Fp8Options& fp8, ExpertRanks experts,
                                    Values values, VocabularyRanks vocabulary) {
  LanguageModel model(std::make_unique<Impl>(config, std::move(sharing),
                                             with_gradients ? Sharers::training : Sharers::inference, multiplying(fp8),
                                             std::move(experts), std::move(vocabulary)));
  for (auto& angles : model.impl_->model.angles()) angles.described = !seed;
  models::create(*model.state_, seed, with_gradients, values);
  return model;
}

LanguageModel LanguageModel::random(Pool& pool, const io::ModelConfig& config, std::uint64_t seed, Sharing sharing) {
  LanguageModel model(std::make_unique<Impl>(config, std::move(sharing), Sharers::inference));
  auto* impl = model.impl_.get();
  const auto& c = impl->config;
  std::uint64_t stream = 0;
  const auto keep = [&](OwnedTensor t) {
    impl->own.push_back(std::move(t.buffer));
    return t.tensor;
  };
  impl->for_each([&]<class P>(const std::string& name, P& p) {
    const Rng rng{seed, ++stream};
    if (!p.spec) return;
    if constexpr (std::is_same_v<P, nn::Weight>) {
      using enum quant::Treatment;
      const auto t = c.quant ? treatment(impl->model.spec(), c.tied, name, {p.whole(), p.spec.dtype}) : copy;
      if (t == matrix || t == conv1d) {
        nn::RoundingError ignored;
        const OwnedTensor w = drawn(pool, p, rng, c.dtype);
        auto parts = c.quant->codec->quantize(pool, w.tensor, c.quant->options, t == conv1d, ignored, name);
        p.name = name, p.codec = c.quant->codec;
        for (std::size_t i = 0; i < parts.size(); ++i) {
          p.parts[i] = parts[i].tensor.spec();
          if (parts[i].tensor) model.state_->add_frozen(p, p.codec->names[i].in_programs, keep(std::move(parts[i])));
        }
        return;
      }
    }
    model.state_->add_value(p, keep(drawn(pool, p, rng, c.dtype)));
  });
  return model;
}

std::int64_t LanguageModel::bytes() const {
  std::int64_t all = state_->bytes() + impl_->bytes_of_choices();
  for (const auto& angles : impl_->model.angles()) all += angles.table.tensor.bytes();
  return all;
}

LanguageModel LanguageModel::open(const std::filesystem::path& folder, Sharing sharing, const io::LoadOptions& load_as,
                                  const ComputeType& compute) {
  if (sharing && sharing->size() > 1 && (!load_as.adapter.empty() || !load_as.choices.empty()))
    fail_usage("model", "ranks that share the layers use no adapter: merge {} into the model with hpcdl adapter merge",
               (load_as.choices.empty() ? load_as.adapter : load_as.choices[0].folder).string());
  auto adding = load_as.adapter.empty() ? std::nullopt : std::optional(AdapterFolder::open(load_as.adapter));
  LanguageModel model(
      std::make_unique<Impl>(read_hf_config(folder), std::move(sharing), Sharers::inference, attaching(adding)));
  auto* impl = model.impl_.get();
  using Mode = io::LoadMode;
  if (impl->sharing && load_as.vram > 0)
    fail_usage("model", "ranks that share the layers of {} hold all of their parts: leave out --vram", folder.string());
  impl->vram = load_as.vram;
  if (impl->sharing && (load_as.ram > 0 || load_as.mode == Mode::direct || load_as.mode == Mode::resident))
    fail_usage(
        "model",
        "ranks that share the layers of {} map its files and copy what is not one piece of them: leave out --ram, "
        "and --load {}",
        folder.string(), io::enum_name(load_as.mode));
  impl->compute = compute.dtype, impl->adding = std::move(adding);
  impl->files = WeightFiles::open(folder, impl->config, impl->model.spec());
  const Binder binder(*impl->files, impl->model.spec(), impl->config.quant);
  const bool decodes = io::is_gguf(folder) || pack_config_of(folder);
  std::optional<Pool> decoding;
  ComputeType with_pool = compute;
  if (decodes && !compute.pool) with_pool.pool = &decoding.emplace();
  if (decodes) model.prefetch();
  // Ranks decode what they have, and so does who asks for another type. Ops with the matrices of all experts read no others.
  const bool stays_quantized = decodes && !impl->sharing && compute.dtype == DType::none &&
                               !row_of(impl->config.family).mixture && !impl->decoded_is_faster(load_as.device);
  impl->for_each([&]<class P>(const std::string& name, P& p) {
    if (impl->adding)
      if (const auto value = impl->adapted_value(name, p)) return model.state_->add_value(p, *value);
    if constexpr (std::is_same_v<P, nn::Weight>) {
      if (binder.bind_quantized(name, p, *model.state_, impl->own)) return;
      if (stays_quantized && binder.bind_stored(name, p, *model.state_, impl->own)) return;
    }
    model.state_->add_value(p, binder.part(p, with_pool, impl->own));
  });
  if (!load_as.choices.empty()) impl->add_choices(folder, load_as, binder, inference_type(model, load_as.device));
  const auto names = impl->names();
  binder.require_whole_layers(names);
  if (impl->adding) {
    impl->adding->require_no_others({names.begin(), names.end()});
    impl->adding->require_base(folder);
  }
  const bool converts = !impl->own.empty() && (decodes || compute.dtype != DType::none);
  if (converts && (load_as.ram > 0 || load_as.mode == Mode::direct || load_as.mode == Mode::resident))
    fail_usage("model", "{} of {} into memory, whatever --ram and --load say: leave out {}",
               decodes ? "weights are decoded" : "--dtype converts weights", folder.string(),
               decodes ? "these options" : "one or the others");
  auto loads = converts || impl->sharing ? io::LoadOptions() : load_as;
  if (loads.ram > 0) loads.ram = std::max<std::int64_t>(1, loads.ram - impl->bytes_of_choices());
  model.load_weights(loads);
  if (decodes && model.codec() && !impl->weights)
    impl->loading = fmt::format("quantised as in the file, and {} in other memory",
                                format_bytes(static_cast<double>(model.converted_bytes())));
  else if (converts && decodes)
    impl->loading = "decoded: " + format_bytes(static_cast<double>(model.converted_bytes())) + " in memory";
  else if (impl->sharing)
    impl->loading =
        fmt::format("mapped, of which rank {} of {} uses its part", impl->sharing->rank, impl->sharing->size());
  return model;
}

void LanguageModel::Impl::add_choices(const std::filesystem::path& folder, const io::LoadOptions& load,
                                      const Binder& binder, DType matrices) {
  std::vector<AdapterFolder> folders;
  for (const auto& c : load.choices) {
    folders.push_back(AdapterFolder::open(c.folder));
    folders.back().require_base(folder);
    choices.push_back(c.name);
  }
  sets_of_choices = attach_choices(model, folders, binder, load.device.is_cuda() ? matrices : DType::f32);
}

void LanguageModel::load_weights(const io::LoadOptions& options) {
  const auto files = impl_->files->files();
  const auto choice = choose_load(options, options.mode == io::LoadMode::mapped ? LoadFacts() : load_facts(files));
  impl_->loading = "mapped";
  if (choice.mode != io::LoadMode::mapped) {
    auto& decoder = impl_->model;
    impl_->weights.emplace(
        files, *state_, impl_->config.layers,
        [&](std::string_view name) { return LoadedWeights::Part{decoder.layer_of(name), decoder.expert_of(name)}; },
        choice.ram);
    decoder.load_from(&*impl_->weights);
    impl_->loading = impl_->weights->describe();
  }
  if (!choice.why.empty()) impl_->loading += fmt::format(" ({})", choice.why);
}

LanguageModel LanguageModel::open_for_training(const std::filesystem::path& folder, Sharing sharing,
                                               const Fp8Options& fp8, ExpertRanks experts, Values values,
                                               VocabularyRanks vocabulary) {
  LanguageModel model(std::make_unique<Impl>(read_hf_config(folder), std::move(sharing), Sharers::training,
                                             multiplying(fp8), std::move(experts), std::move(vocabulary)));
  auto* impl = model.impl_.get();
  require(!impl->config.quant, "model", "{} is quantised: training needs the original model", folder.string());
  const std::shared_ptr files = WeightFiles::open(folder, impl->config, impl->model.spec());
  const Binder binder(*files, impl->model.spec());
  model.state_->allocate(true, [files, binder](const StateEntry& e, Interval range, const Tensor& to) {
    binder.copy(e.name, to, Part::flat(e.param->whole(), range, e.part));
  });
  for (const auto& e : model.parameters()) binder.dtype(e.name, e.whole().shape);
  for (const auto& e : model.buffers()) std::memset(e.memory.data(), 0, static_cast<std::size_t>(e.memory.bytes()));
  binder.require_whole_layers(impl->names());
  if (values == Values::now) model.fill();
  return model;
}

/// The value of a frozen parameter: where its file is mapped, or in `own`.
Tensor LanguageModel::Impl::frozen_value(const nn::Param& p, const Binder& binder, const ComputeType& type,
                                         bool described) {
  const DType stored = binder.dtype(p.name, p.whole());
  const bool rounds = p.multiplied && (type.dtype == DType::bf16 || type.dtype == DType::f16);
  const DType held = rounds ? type.dtype : stored == DType::f64 ? DType::f32 : stored;
  if (described) return Tensor(nullptr, {p.spec.shape, held});
  return binder.part(p, {held, type.pool}, own);
}

/// A GPU multiplies prompts, and more than about 32 texts at a time, by decoded weights faster (28672 x 8192 in NF4 on an
/// H100, us: 8 rows 64, 64 rows 140, 512 rows 606; in bf16 171, 172, 315), so it decodes them if half of its memory is
/// left for keys, values and activations.
bool LanguageModel::Impl::decoded_is_faster(Device device) {
  if (!device.is_cuda()) return false;
  std::int64_t elements = 0;
  for_each([&](const std::string&, const nn::Param& p) { elements += p.spec ? p.spec.size() : 0; });
  return elements * dtype_bytes(DType::bf16) <= available_memory(device).bytes / 2;
}

/// Whether a frozen matrix is one that the options quantise.
bool LanguageModel::Impl::quantizes(const nn::Weight& w) const {
  if (!base_options.given() || w.role != nn::Role::frozen || model.layer_of(w.name) < 0) return false;
  const auto kind = treatment(model.spec(), config.tied, w.name, {w.spec.shape, DType::f32});
  if (kind != quant::Treatment::matrix && kind != quant::Treatment::conv1d) return false;
  const auto in = w.spec[kind == quant::Treatment::conv1d ? 0 : 1];
  return quant::misfit(codec_of(base_options), in, {.nested = base_options.nested}).empty();
}

/// Adds the parts of a matrix of the files, quantised here; without a pool only their specs.
void LanguageModel::Impl::add_quantized(nn::Weight& w, const Binder& binder, Pool* pool, StateTable& table) {
  const auto& codec = codec_of(base_options);
  const nn::CodecOptions options{.nested = base_options.nested};
  const bool in_out = model.spec().layout == nn::Layout::in_out;
  nn::Codec::Parts<Tensor> parts;
  if (pool) {
    std::vector<Buffer> read;  // of one matrix
    nn::RoundingError ignored;
    const Tensor values = binder.part(w, {DType::none, pool}, read);
    auto made = codec.quantize(*pool, values, options, in_out, ignored, w.name);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i] = made[i].tensor;
      if (parts[i]) own.push_back(std::move(made[i].buffer));
    }
  } else {
    const auto specs = codec.specs(w.spec[in_out ? 1 : 0], w.spec[in_out ? 0 : 1], options);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = Tensor(nullptr, specs[i]);
  }
  w.codec = &codec;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    w.parts[i] = parts[i].spec();
    if (w.parts[i]) table.add_frozen(w, codec.names[i].in_programs, parts[i]);
  }
}

LanguageModel LanguageModel::open_for_adapting(const std::filesystem::path& folder, const AdapterOptions& adapter,
                                               std::optional<std::uint64_t> seed, const ComputeType& compute,
                                               Sharing sharing, const BaseOptions& base) {
  if (base.given() && sharing && sharing->size() > 1)
    fail_usage("model",
               "ranks that share the layers hold no quantised base: set parallel.tp to 1, or model.quantize to none");
  const auto config = read_hf_config(folder);
  if ((base.given() || config.quant) && config.experts > 0)
    fail_usage("model",
               "{} is a mixture of experts, whose gradients need dense experts: start from the original "
               "model, without model.quantize",
               folder.string());
  const bool foreign = io::is_gguf(folder) || pack_config_of(folder);
  require_adaptable(folder, config, foreign, base, sharing && sharing->size() > 1);
  LanguageModel model(
      std::make_unique<Impl>(config, std::move(sharing), Sharers::training, [&](Decoder& d) { adapt(d, adapter); }));
  auto* impl = model.impl_.get();
  impl->adapter = adapter, impl->base = folder, impl->base_options = base;
  for (auto& angles : impl->model.angles()) angles.described = !seed;
  models::create(*model.state_, seed, true);
  impl->files = WeightFiles::open(folder, impl->config, impl->model.spec());
  const Binder binder(*impl->files, impl->model.spec(), impl->config.quant);
  for (const auto& e : model.parameters())
    if (seed && !nn::is_of_adapter(e.name)) binder.copy(e.name, e.memory, e.part);
  std::optional<Pool> one;
  Pool* const pool = !seed ? nullptr : compute.pool ? compute.pool : &one.emplace(1);
  impl->for_each([&]<class P>(const std::string& name, P& p) {
    if (!p.spec || p.role != nn::Role::frozen) return;
    if constexpr (std::is_same_v<P, nn::Weight>) {
      if (impl->config.quant && binder.bind_quantized(name, p, *model.state_, impl->own)) return;
      if (foreign && config.experts == 0 && binder.bind_stored(name, p, *model.state_, impl->own)) return;
      if (impl->quantizes(p)) return impl->add_quantized(p, binder, pool, *model.state_);
    }
    model.state_->add_value(p, impl->frozen_value(p, binder, compute, !seed));
  });
  if (base.given() && !model.codec())
    fail_usage("model", "model.quantize = \"{}\": no matrix of {} has a number of inputs that {} can hold",
               io::enum_name(base.format), folder.string(), io::enum_name(base.format));
  binder.require_whole_layers(impl->names());
  return model;
}

const io::ModelConfig& LanguageModel::config() const { return impl_->config; }

const nn::Sharing* LanguageModel::sharing() const { return impl_->sharing.get(); }

DType LanguageModel::compute_type() const { return impl_->compute; }

std::int64_t LanguageModel::converted_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& buffer : impl_->own) bytes += buffer.bytes();
  return bytes;
}

DType LanguageModel::matrix_type() const {
  std::vector<DType> types;
  impl_->for_each([&](const std::string&, const nn::Param& p) {
    if (p.multiplied) types.push_back(p.value.dtype);
  });
  const bool one = std::all_of(types.begin(), types.end(), [&](DType d) { return d == types.front(); });
  return one && !types.empty() ? types.front() : DType::none;
}

const nn::Codec* LanguageModel::codec() const {
  const nn::Codec* found = nullptr;
  impl_->for_each([&]<class P>(const std::string&, const P& p) {
    if constexpr (std::is_same_v<P, nn::Weight>)
      if (!found) found = p.codec;
  });
  return found;
}

OwnedTensor LanguageModel::gather(const StateEntry& p) const {
  OwnedTensor whole(p.whole());
  copy_common(whole.tensor, {}, p.host, p.part);
  const bool divided = p.param->experts != nullptr, shared = impl_->sharing && (divided || !p.part.all()),
             across = impl_->vocabulary && !divided && !p.part.all();
  if (!shared && !divided && !across) return whole;
  require(whole.tensor.dtype() == DType::f32, "model", "{}: ranks gather F32, found {}", p.name,
          to_string(whole.tensor.spec()));
  // Every element is on one rank, with zero bits on the others: a sum of integer words preserves its bits.
  Pool pool(1);
  Stream host(pool);
  const Tensor words(whole.tensor.data(), {whole.tensor.shape(), DType::i32});
  if (shared) impl_->sharing->axis.bound().all_reduce(host, words, false, p.name);
  if (divided) p.param->experts->axis.bound().all_reduce(host, words, false, p.name);
  if (across) impl_->vocabulary->axis.bound().all_reduce(host, words, false, p.name);
  return whole;
}

std::int64_t LanguageModel::mapped_bytes() const {
  std::int64_t bytes = 0;
  if (impl_->files)
    for (const auto* file : impl_->files->files()) bytes += file->size();
  return bytes;
}

const std::vector<std::string>& LanguageModel::adapters() const { return impl_->choices; }

const std::string& LanguageModel::loading() const { return impl_->loading; }

void LanguageModel::prefetch() {
  if (!impl_->files || impl_->weights || impl_->sharing || !impl_->reading.empty()) return;
  if (mapped_bytes() > share_for_weights(free_memory())) return;
  for (const auto* file : impl_->files->files()) impl_->reading.push_back(file->prefetch());
}

Var LanguageModel::body(Graph& g, const Var& tokens, const nn::ForwardOptions& o) const {
  return blocks(g, tokens, o, nullptr);
}

Var LanguageModel::blocks(Graph& g, const Var& tokens, const nn::ForwardOptions& o, RouterLoad* load) const {
  state_->bind(g);
  require(tokens.shape().rank() == 2 && tokens.dtype() == DType::i32, "model", "tokens must be I32 (B, T), got {}",
          to_string(tokens.spec()));
  require(o.batch || o.length(tokens) <= impl_->config.context, "model", "{} tokens exceed the context of {}",
          o.length(tokens), impl_->config.context);
  return impl_->model.body(tokens, o, load);
}

Var LanguageModel::head(Graph& g, const Var& hidden) const {
  state_->bind(g);
  Graph::Scope scope(g, "head");
  return capped(head_logits(impl_->model.head(), impl_->model.norm(hidden)), impl_->config);
}

std::vector<InputSpec> LanguageModel::inputs(std::int64_t batch, std::int64_t length,
                                             const nn::ForwardOptions& o) const {
  Spec ids{{batch, length}, DType::i32};
  if (o.context) ids.shape = o.context->tokens_of_rank(batch, length);
  std::vector<InputSpec> list{{"tokens", ids}, {"targets", ids, SlotRole::targets}};
  if (o.context || o.documents) list.push_back({"positions", ids});
  return list;
}

PassOutputs LanguageModel::pass(Graph& g, std::span<const Var> in, const nn::ForwardOptions& o) const {
  if (!o.context && !o.documents) return pass_of(g, in[0], in[1], o);
  auto placed = o;
  placed.positions = in[2];
  return pass_of(g, in[0], in[1], placed);
}

Var LanguageModel::logits(Graph& g, const Var& tokens, const nn::ForwardOptions& o) const {
  return head(g, body(g, tokens, o));
}

Var LanguageModel::loss(Graph& g, const Var& tokens, const Var& targets, const nn::ForwardOptions& o) const {
  return pass_of(g, tokens, targets, o).loss;
}

PassOutputs LanguageModel::pass_of(Graph& g, const Var& tokens, const Var& targets, const nn::ForwardOptions& o) const {
  if (!o.training || impl_->config.experts == 0) return {token_loss(g, body(g, tokens, o), targets, o)};
  RouterLoad load{.balanced = impl_->config.balance != 0, .probabilities = {}, .counts = {}, .dropped = {}};
  const Var hidden = blocks(g, tokens, o, &load);
  const Var y = token_loss(g, hidden, targets, o);
  return {with_balance(g, y, load, targets, o), {}, load.dropped};
}

/// y + the loss that balances the experts.
Var LanguageModel::with_balance(Graph& g, const Var& y, RouterLoad load, const Var& targets,
                                const nn::ForwardOptions& o) const {
  if (!load.balanced) return y;
  Graph::Scope scope(g, "head.balance");
  if (o.shared_batch) load.counts = gather_rows(load.counts, o.shared_batch->with("experts"));
  return add(y, expert_balance(load.probabilities, load.counts, targets,
                               {.coefficient = static_cast<float>(impl_->config.balance),
                                .layers = static_cast<std::int32_t>(impl_->config.layers),
                                .ranks = o.shared_batch ? o.shared_batch->ranks : 1,
                                .gradient = !impl_->sharing || impl_->sharing->rank == 0}));
}

/// The sum of the losses of valid targets, of the output of the blocks.
Var LanguageModel::token_loss(Graph& g, const Var& hidden, const Var& targets, const nn::ForwardOptions& o) const {
  Graph::Scope scope(g, "head");
  const auto& weight = impl_->model.head();
  const std::int64_t rows = targets.shape().size();
  const Var labels = g.reshape(targets, {rows});
  const Var h = g.reshape(impl_->model.norm(hidden), {rows, hidden[-1]});
  const auto& c = impl_->config;
  if (c.logit_cap > 0 && (impl_->vocabulary || (weight.gradient && weight.shared_as(nn::Place::vocabulary))))
    fail_usage("model", "{}: capped logits are not divided: set parallel.tp = 1, parallel.vocabulary = \"stage\"",
               io::enum_name(c.family));
  if (weight.quantized() || c.logit_cap > 0) return cross_entropy(capped(head_logits(weight, h), c), labels)[0];
  const Var w = weight.rounded(g, h.dtype());
  const bool keep = rows * weight.spec[0] * dtype_bytes(h.dtype()) <= o.keep_logits_bytes;
  const VocabularyRows::Args mine{keep, weight.part.all() ? 0 : weight.part.boxes[0].begin[0], weight.whole()[0]};
  if (const auto* share = impl_->vocabulary.get()) {
    Graph::Scope across(g, nn::kVocabularyScope);
    return loss_in_passes(h, w, labels, mine, share->axis.with("loss"), share->barriers);
  }
  if (const auto* s = weight.shared_as(nn::Place::vocabulary))
    return vocabulary_loss(h, w, labels, mine, s->axis.with("loss"));
  if (o.head_gradient_now) return lm_head_gradient(h, w, labels, {.frozen = !weight.gradient})[0];
  return lm_head_loss(h, w, labels, {.keep_logits = keep})[0];
}

void LanguageModel::save_adapter(const std::filesystem::path& folder) const {
  AdapterFacts facts{.base = impl_->base.string(), .conv1d = impl_->model.spec().layout == nn::Layout::in_out};
  impl_->model.visit([&]<class M>(const auto& name, M& m) {
    if constexpr (std::is_same_v<M, nn::Linear>) (m.adapter ? facts.layers : facts.no_layers).emplace_back(name);
  });
  const std::set<std::string> adapted(facts.layers.begin(), facts.layers.end());
  const auto name_of = [&](const StateEntry& p) {
    return peft_name(p.name, adapted.contains(p.name.substr(0, p.name.rfind('.'))));
  };
  std::optional<io::SafeTensorsWriter> writer;
  std::vector<io::NamedSpec> specs;
  for (const auto& p : state_->parameters()) specs.push_back({name_of(p), {p.whole().shape, DType::f32}});
  const bool writes = !impl_->sharing || impl_->sharing->rank == 0;
  if (writes) {
    io::make_folder(folder);
    writer.emplace(folder / kAdapterTensors, specs);
  }
  for (const auto& p : state_->parameters()) {
    const OwnedTensor whole = p.part.all() ? OwnedTensor() : gather(p);
    if (writes) writer->write(name_of(p), p.part.all() ? p.host : whole.tensor);
  }
  if (!writes) return;
  writer->commit();
  io::write_file_atomic(folder / kAdapterConfig, make_adapter_config(impl_->adapter, facts).dump(2) + "\n");
  write_adapter_base(folder, {fingerprint(impl_->base), impl_->adapter.scale(), impl_->base_options.words()});
}

void LanguageModel::save(const std::filesystem::path& folder, DType dtype) const {
  if (impl_->adapter.given()) return save_adapter(folder);
  require(!codec(), "model", "a quantised model cannot be saved again: copy its folder");
  const auto first = [](const auto& ranks) { return !ranks || ranks->rank == 0; };
  const bool writes = first(impl_->sharing) && first(impl_->experts) && first(impl_->vocabulary);
  const auto held_whole = [](const StateEntry& p) { return p.part.all() && !p.param->experts; };
  if (!writes) {
    for (const auto& p : state_->parameters())
      if (!held_whole(p)) gather(p);
    return;
  }
  std::vector<io::NamedSpec> specs;
  for (const auto& p : state_->parameters()) specs.push_back({p.name, {p.whole().shape, dtype}});
  std::filesystem::create_directories(folder);
  io::TensorFolderWriter writer(folder, specs);
  for (const auto& p : state_->parameters()) {
    const OwnedTensor whole = held_whole(p) ? OwnedTensor() : gather(p);
    const Tensor& value = held_whole(p) ? p.host : whole.tensor;
    if (value.dtype() == dtype) {
      writer.write(p.name, value);
      continue;
    }
    OwnedTensor t({value.shape(), dtype});
    convert_elements(t.tensor, value);
    writer.write(p.name, t.tensor);
  }
  writer.commit();
  io::ModelConfig c = impl_->config;
  c.dtype = dtype;
  write_hf_config(folder, c);
}

}  // namespace hpcdl::models
