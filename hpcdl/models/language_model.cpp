#include "hpcdl/models/language_model.h"

#include <cstring>
#include <variant>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/rng.h"
#include "hpcdl/io/hf_config.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/upload.h"
#include "hpcdl/models/bind.h"
#include "hpcdl/models/blocks.h"
#include "hpcdl/models/gpt.h"
#include "hpcdl/models/llama.h"
#include "hpcdl/models/shard.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/lm_head_gradient/lm_head_gradient.h"
#include "hpcdl/ops/lm_head_loss/lm_head_loss.h"

namespace hpcdl::models {
namespace {

constexpr std::int64_t kAlign = 256;  // more than any kernel asks for

std::int64_t padded(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

std::variant<Gpt, Llama> build(const io::ModelConfig& c) {
  if (c.family == io::Family::gpt2) return Gpt(c);
  return Llama(c);
}

}  // namespace

struct LanguageModel::Impl {
  io::ModelConfig config;
  Sharing sharing;                          // before the model, which points to it
  std::variant<Gpt, Llama> model;
  Buffer values, gradients;                 // models in own memory
  std::optional<io::TensorFolder> folder;   // mapped models
  std::vector<io::Prefetch> reading;        // after folder: stops before the mapping goes
  std::vector<Buffer> converted;            // tensors of a mapped model whose type no kernel reads (F16, F64)
  std::vector<NamedParameter> parameters;
  Buffer copies;                            // of matrices, in 16 bits
  Device device;
  Buffer on_device;                         // a copy of everything that programs read

  explicit Impl(io::ModelConfig c, Sharing s = {}) : config(std::move(c)), sharing(std::move(s)), model(build(config)) {
    for_each([](const std::string& name, nn::Param& p) { p.name = name; });
    if (sharing && sharing->size() == 1) sharing = {};
    if (sharing) std::visit([&](auto& m) { shard(m, *sharing); }, model);
  }

  template <class F> void for_each(F f) {
    std::visit([&](auto& m) { nn::for_each_param(m, f); }, model);
  }

  void list_parameters() {
    for_each([&](const std::string& name, nn::Param& p) {
      if (p.value) parameters.push_back({name, p.value, p.gradient, p.decay, p.value, {}, shard_spec(p.part), p.partial_gradient});
    });
  }

  /// Own f32 memory for every parameter: one block of values, one of gradients.
  void allocate(bool with_gradients) {
    std::int64_t total = 0;
    for_each([&](const std::string&, nn::Param& p) { total += padded(p.spec.bytes()); });
    values = Buffer(total);
    if (with_gradients) gradients = Buffer(total);
    std::int64_t at = 0;
    for_each([&](const std::string&, nn::Param& p) {
      p.value = Tensor(values.data() + at, p.spec);
      if (with_gradients) p.gradient = Tensor(gradients.data() + at, p.spec);
      at += padded(p.spec.bytes());
    });
  }
};

void LanguageModel::to_device(const Stream& s) {
  auto& m = *impl_;
  if (!s.device().is_cuda()) return;
  require(!m.device.is_cuda(), "model", "the model lies on a GPU already");
  m.device = s.device();
  std::vector<Tensor*> values, gradients;
  const auto note = [](std::vector<Tensor*>& list, Tensor& t) {
    if (t) list.push_back(&t);
  };
  std::visit([&](auto& model) {
    nn::for_each_param(model, [&]<class P>(const std::string&, P& p) {
      if constexpr (std::is_same_v<P, nn::Weight>)
        for (Tensor* part : {&p.packed, &p.scale, &p.offset}) note(values, *part);
      note(values, p.value);
      note(gradients, p.gradient);
    });
    if constexpr (requires { model.angles; }) note(values, model.angles.tensor);
  }, m.model);

  io::Upload upload;
  const auto move = [&](const std::vector<Tensor*>& list, bool with_values) {
    std::int64_t total = 0;
    for (const auto* t : list) total += padded(t->bytes());
    Buffer block(total, s.device());
    auto* at = block.data();
    for (auto* t : list) {
      const Tensor there(at, t->spec(), s.device());
      if (with_values) upload.add(there, *t);
      *t = there;
      at += padded(t->bytes());
    }
    return block;
  };
  m.on_device = move(values, true);
  m.gradients = move(gradients, false);
  upload.run(s);
  std::visit([](auto& model) {
    if constexpr (requires { model.angles; }) model.angles.buffer = {};
  }, m.model);
  std::size_t next = 0;
  m.for_each([&](const std::string&, nn::Param& p) {
    if (!p.value) return;
    m.parameters[next].value = p.value;
    m.parameters[next++].gradient = p.gradient;
  });
}

void LanguageModel::place_gradients(const std::function<Tensor(const NamedParameter&)>& where) {
  auto& m = *impl_;
  std::size_t next = 0;
  m.for_each([&](const std::string&, nn::Param& p) {
    if (!p.value) return;
    auto& known = m.parameters[next++];
    const Tensor there = where(known);
    require(there && there.spec() == p.value.spec() && there.is_contiguous() && there.device() == m.device, "model",
            "the gradient of \"{}\" must be a contiguous {} on the device of the model, got {}", known.name, to_string(p.value.spec()), to_string(there.spec()));
    p.gradient = known.gradient = there;
  });
  m.gradients = {};
}

void LanguageModel::keep_copies(DType type) {
  auto& m = *impl_;
  const auto* head = std::visit([](const auto& model) { return &model.head(); }, m.model);
  std::vector<nn::Param*> matrices;
  std::int64_t total = 0;
  m.for_each([&](const std::string&, nn::Param& p) {
    if (!p.value || (!p.multiplied && &p != head)) return;
    matrices.push_back(&p);
    total += padded(p.value.size() * dtype_bytes(type));
  });
  m.copies = Buffer(total, m.device);
  auto* at = m.copies.data();
  for (auto* p : matrices) {
    p->copy = Tensor(at, {p->value.shape(), type}, m.device);
    at += padded(p->copy.bytes());
    for (auto& known : m.parameters)
      if (known.name == p->name) known.copy = p->copy;
  }
}

void LanguageModel::round_copies(Stream& s) const {
  for (const auto& p : impl_->parameters)
    if (p.copy) Cast::forward(s, p.copy, p.value, {p.copy.dtype()});
}

Device LanguageModel::device() const { return impl_->device; }

void LanguageModel::fetch(const Stream& s) const {
  if (device().is_cuda())
    for (const auto& p : impl_->parameters) copy(s, p.host, p.value);
}

void LanguageModel::store(const Stream& s) {
  if (!device().is_cuda()) return;
  io::Upload upload;
  for (const auto& p : impl_->parameters) upload.add(p.value, p.host);
  upload.run(s);
}

LanguageModel::LanguageModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LanguageModel::LanguageModel(LanguageModel&&) noexcept = default;
LanguageModel& LanguageModel::operator=(LanguageModel&&) noexcept = default;
LanguageModel::~LanguageModel() = default;

LanguageModel LanguageModel::create(const io::ModelConfig& config, std::uint64_t seed, bool with_gradients, Sharing sharing) {
  auto impl = std::make_unique<Impl>(config, std::move(sharing));
  impl->allocate(with_gradients);
  std::uint64_t stream = 0;
  impl->for_each([&](const std::string&, nn::Param& p) {
    const Rng rng{seed, ++stream};
    float* v = p.value.ptr<float>();
    const auto fill = [&](std::int64_t at, std::int64_t whole, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) {
        v[at + i] = p.init == nn::Init::ones ? 1.0f
                    : p.init == nn::Init::normal ? static_cast<float>(rng.normal(static_cast<std::uint64_t>(whole + i))) * p.std
                                                 : 0.0f;
      }
    };
    if (p.part) for_each_run(p.part, fill);
    else fill(0, 0, p.value.size());
  });
  impl->list_parameters();
  return LanguageModel(std::move(impl));
}

LanguageModel LanguageModel::open(const std::filesystem::path& folder) {
  auto impl = std::make_unique<Impl>(io::read_hf_config(folder));
  impl->folder = io::TensorFolder::open(folder);
  const Binder binder(*impl->folder, impl->config);
  std::visit([&](auto& m) {
    nn::for_each_param(m, [&]<class P>(const std::string& name, P& p) {
      if constexpr (std::is_same_v<P, nn::Weight>) {
        if (binder.bind_int4(name, p)) return;
      }
      p.value = binder.view(name, p.spec, impl->converted);
    });
  }, impl->model);
  impl->list_parameters();
  return LanguageModel(std::move(impl));
}

LanguageModel LanguageModel::open_for_training(const std::filesystem::path& folder, Sharing sharing) {
  auto impl = std::make_unique<Impl>(io::read_hf_config(folder), std::move(sharing));
  require(!impl->config.quant, "model", "{} is quantised: training needs the model it was made from", folder.string());
  const auto files = io::TensorFolder::open(folder);
  const Binder binder(files, impl->config);
  impl->allocate(true);
  impl->for_each([&](const std::string& name, nn::Param& p) { binder.copy(name, p.value, p.part); });
  impl->list_parameters();
  return LanguageModel(std::move(impl));
}

const io::ModelConfig& LanguageModel::config() const { return impl_->config; }
std::span<NamedParameter> LanguageModel::parameters() { return impl_->parameters; }

std::int64_t LanguageModel::parameter_count() const {
  std::int64_t n = 0;
  impl_->for_each([&](const std::string&, nn::Param& p) { n += p.spec ? p.whole().size() : 0; });
  return n;
}

const parallel::TensorParallel* LanguageModel::sharing() const { return impl_->sharing.get(); }

OwnedTensor LanguageModel::gather(const NamedParameter& p) const {
  OwnedTensor whole(io::whole_spec(p.host.spec(), p.shard, p.name));
  io::copy_common(whole.tensor, {}, p.host, p.shard);
  if (!impl_->sharing || p.shard.all()) return whole;
  // Every element is on one rank, and zero bits on the others: a sum of words keeps its bits.
  Pool pool(1);
  const Stream host(pool);
  impl_->sharing->group().all_reduce(host, Tensor(whole.tensor.data(), {whole.tensor.shape(), DType::i32})).wait();
  return whole;
}

std::int64_t LanguageModel::mapped_bytes() const { return impl_->folder ? impl_->folder->mapped_bytes() : 0; }

void LanguageModel::prefetch() {
  if (!impl_->folder || !impl_->reading.empty()) return;
  for (const auto& shard : impl_->folder->shards()) impl_->reading.push_back(shard.file().prefetch());
}

Var LanguageModel::body(Graph&, const Var& tokens, const nn::ForwardOptions& o) const {
  require(tokens.shape().rank() == 2 && tokens.dtype() == DType::i32, "model", "tokens must be I32 (B, T), got {}", to_string(tokens.spec()));
  require(o.cache || tokens[1] <= impl_->config.context, "model", "{} tokens exceed the context of {}", tokens[1], impl_->config.context);
  return std::visit([&](const auto& m) { return m.body(tokens, o); }, impl_->model);
}

Var LanguageModel::head(Graph& g, const Var& hidden) const {
  require(!impl_->sharing, "model", "the logits of a model whose layers several ranks share are never in one place: ask for its loss, or open it on one rank");
  Graph::Scope scope(g, "head");
  return std::visit([&](const auto& m) { return head_logits(m.head(), m.norm(hidden)); }, impl_->model);
}

Var LanguageModel::logits(Graph& g, const Var& tokens, const nn::ForwardOptions& o) const { return head(g, body(g, tokens, o)); }

Var LanguageModel::loss(Graph& g, const Var& tokens, const Var& targets, const nn::ForwardOptions& o) const {
  const Var hidden = body(g, tokens, o);
  Graph::Scope scope(g, "head");
  return std::visit([&](const auto& m) {
    const auto& weight = m.head();
    const std::int64_t rows = tokens.shape().size();
    const Var labels = g.reshape(targets, {rows});
    const Var h = g.reshape(m.norm(hidden), {rows, hidden[-1]});
    if (impl_->sharing) return impl_->sharing->loss(weight, h, labels, o);
    if (weight.quantized()) return cross_entropy(head_logits(weight, h), labels)[0];
    if (o.head_gradient_now) return lm_head_gradient(h, weight.rounded(g, h.dtype()), labels)[0];
    const bool keep = rows * weight.spec[0] * dtype_bytes(h.dtype()) <= o.keep_logits_bytes;
    return lm_head_loss(h, weight.rounded(g, h.dtype()), labels, {.keep_logits = keep})[0];
  }, impl_->model);
}

void LanguageModel::save(const std::filesystem::path& folder, DType dtype) const {
  require(!impl_->config.quant, "model", "a quantised model cannot be saved again: copy its folder");
  if (impl_->sharing && impl_->sharing->rank() > 0) {
    for (const auto& p : impl_->parameters) gather(p);
    return;
  }
  std::vector<io::NamedSpec> specs;
  for (const auto& p : impl_->parameters) specs.push_back({p.name, {io::whole_spec(p.host.spec(), p.shard, p.name).shape, dtype}});
  std::filesystem::create_directories(folder);
  io::TensorFolderWriter writer(folder, specs);
  for (const auto& p : impl_->parameters) {
    const OwnedTensor whole = p.shard.all() ? OwnedTensor() : gather(p);
    const Tensor& value = p.shard.all() ? p.host : whole.tensor;
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
  io::write_hf_config(folder, c);
}

}  // namespace hpcdl::models
