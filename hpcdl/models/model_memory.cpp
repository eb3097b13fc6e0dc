#include "hpcdl/models/model_memory.h"

#include <algorithm>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/pool.h"
#include "hpcdl/core/rng.h"
#include "hpcdl/io/upload.h"
#include "hpcdl/models/draw.h"
#include "hpcdl/ops/cast/cast.h"

namespace hpcdl::models {
namespace {

constexpr std::int64_t kAlign = 256;  // more than any kernel asks for
constexpr std::int64_t kWorthThreads = 1 << 18;

std::int64_t padded(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// (N, H, W, C) to (N, C, H, W), or back. F32.
void reorder(float* channels_first, float* channels_last, const Shape& nhwc, bool to_files) {
  const std::int64_t pixels = nhwc[1] * nhwc[2], channels = nhwc[3];
  for (std::int64_t n = 0; n < nhwc[0]; ++n, channels_first += pixels * channels, channels_last += pixels * channels)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t p = 0; p < pixels; ++p) {
        float &file = channels_first[c * pixels + p], &memory = channels_last[p * channels + c];
        if (to_files) file = memory;
        else memory = file;
      }
}

void initialise(Pool& pool, const nn::Param& p, const Rng& rng) {
  const auto fill = [&](std::int64_t at, std::int64_t whole, std::int64_t count) {
    float* v = p.value.ptr<float>() + at;
    const auto first = static_cast<std::uint64_t>(whole);
    if (p.init == nn::Init::normal) draw_normal(pool, v, count, rng, first, p.std);
    else if (p.init == nn::Init::uniform) draw_uniform(pool, v, count, rng, first, p.std);
    else std::fill_n(v, count, p.init == nn::Init::ones ? 1.0f : 0.0f);
  };
  if (p.part.all()) fill(0, 0, p.value.size());
  else for_each_run(p.part, fill);
}

}  // namespace

/// Tensors in a block, one after the other; without memory where the block has none.
class ModelMemory::Cursor {
 public:
  explicit Cursor(const Buffer& b, Device device = {}) : at_(b.data()), device_(device) {}
  Tensor next(const Spec& spec) {
    const Tensor t(at_, spec, device_);
    if (at_) at_ += padded(spec.bytes());
    return t;
  }

 private:
  std::byte* at_;
  Device device_;
};

void ModelMemory::create(std::optional<std::uint64_t> seed, bool with_gradients) {
  described_ = !seed;
  allocate(with_gradients);
  if (seed) initialise(*seed);
  list();
}

std::int64_t ModelMemory::bytes() const {
  std::int64_t sum = 0;
  for (const auto& l : listed_) {
    const auto value = padded(l.param->value.bytes());
    sum += value + padded(l.param->copy.bytes());
    if (!elsewhere_) sum += padded(l.param->gradient.bytes());
    if (l.reordered() && !device_.is_cuda()) sum += value;
  }
  return sum;
}

void ModelMemory::allocate(bool with_gradients) {
  std::int64_t values = 0, gradients = 0;
  for (const auto* p : params_) {
    values += padded(p->spec.bytes());
    if (with_gradients && p->role == nn::Role::trained) gradients += padded(p->spec.bytes());
  }
  values_ = block(values), gradients_ = block(gradients);
  Cursor value(values_), gradient(gradients_);
  for (auto* p : params_) {
    p->value = value.next(p->spec);
    if (with_gradients && p->role == nn::Role::trained) p->gradient = gradient.next(p->spec);
  }
}

void ModelMemory::initialise(std::uint64_t seed) {
  std::int64_t values = 0;
  for (const auto* p : params_) values += p->value.size();
  Pool pool(values < kWorthThreads ? 1 : 0);  // for this moment: models are made where no pool is at hand
  std::uint64_t stream = 0;
  for (const auto* p : params_) {
    const Rng rng{seed, ++stream};
    if (p->role != nn::Role::counter) models::initialise(pool, *p, rng);
  }
}

void ModelMemory::list() {
  std::int64_t bytes = 0;
  for (auto* p : params_) {
    if (!p->value.spec()) continue;
    auto& to = p->role == nn::Role::trained ? parameters_ : buffers_;
    to.push_back({p->name, p->value, p->gradient, p->decay, p->value, {}, p->part, p->partial_gradient});
    listed_.push_back({p, &to, to.size() - 1, p->value});
    if (listed_.back().reordered()) bytes += padded(p->value.bytes());
  }
  files_ = block(bytes);
  Cursor at(files_);
  for (const auto& l : listed_)
    if (l.reordered()) l.known().host = at.next({l.param->file_shape(), l.memory.dtype()});
}

std::int64_t ModelMemory::parameter_count() const {
  std::int64_t n = 0;
  for (const auto* p : params_) n += p->spec && p->role == nn::Role::trained ? p->whole().size() : 0;
  return n;
}

Buffer ModelMemory::move(const Stream& s, const std::vector<Tensor*>& list, bool with_values) const {
  std::int64_t total = 0;
  for (const auto* t : list) total += padded(t->bytes());
  Buffer memory = block(total, s.device());
  io::Upload upload;
  Cursor at(memory, s.device());
  for (auto* t : list) {
    const Tensor there = at.next(t->spec());
    if (with_values) upload.add(there, *t);
    *t = there;
  }
  if (!described_) upload.run(s);
  return memory;
}

void ModelMemory::to_device(const Stream& s, const std::vector<Tensor*>& others) {
  if (!s.device().is_cuda()) return;
  require(!device_.is_cuda(), "model", "the model is already on a GPU");
  device_ = s.device();
  auto values = others;
  std::vector<Tensor*> gradients;
  for (const auto& l : listed_) {
    if (l.param->role != nn::Role::counter) values.push_back(&l.param->value);
    if (l.param->gradient.spec()) gradients.push_back(&l.param->gradient);
  }
  on_device_ = move(s, values, true);
  gradients_ = move(s, gradients, false);
  for (const auto& l : listed_) l.known().value = l.param->value, l.known().gradient = l.param->gradient;
}

void ModelMemory::place_gradients(const std::function<Tensor(const NamedParameter&)>& where) {
  for (const auto& l : listed_) {
    if (l.param->role != nn::Role::trained) continue;
    auto& known = l.known();
    const Tensor there = where(known);
    require(there.spec() == known.value.spec() && there.is_contiguous() && there.device() == device_, "model",
            "the gradient of \"{}\" must be a contiguous {} on the device of the model, got {}", known.name,
            to_string(known.value.spec()), to_string(there.spec()));
    l.param->gradient = known.gradient = there;
  }
  gradients_ = {};
  elsewhere_ = true;
}

void ModelMemory::forget_gradients() {
  for (const auto& l : listed_) l.param->gradient = l.known().gradient = {};
}

void ModelMemory::own_gradients() {
  if (!elsewhere_) return;
  std::int64_t total = 0;
  for (const auto& p : parameters_) total += padded(p.value.bytes());
  gradients_ = block(total, device_);
  Cursor at(gradients_, device_);
  for (const auto& l : listed_)
    if (l.param->role == nn::Role::trained) l.param->gradient = l.known().gradient = at.next(l.known().value.spec());
  elsewhere_ = false;
}

void ModelMemory::keep_copies(DType type) {
  std::int64_t total = 0;
  const auto is_matrix = [](const Listed& l) { return l.param->multiplied; };
  for (const auto& l : listed_)
    if (is_matrix(l)) total += padded(l.param->value.size() * dtype_bytes(type));
  copies_ = block(total, device_);
  Cursor at(copies_, device_);
  for (const auto& l : listed_)
    if (is_matrix(l)) l.known().copy = l.param->copy = at.next({l.param->value.shape(), type});
}

void ModelMemory::round_copies(Stream& s) const {
  for (const auto& p : parameters_)
    if (p.copy) Cast::forward(s, p.copy, p.value, {p.copy.dtype()});
}

void ModelMemory::fetch(const Stream& s) const {
  for (const auto& l : listed_) {
    if (l.param->value.device().is_cuda()) copy(s, l.memory, l.param->value);
    if (l.reordered()) reorder(l.known().host.ptr<float>(), l.memory.ptr<float>(), l.param->channels_last, true);
  }
}

void ModelMemory::store(const Stream& s) const {
  io::Upload upload;
  for (const auto& l : listed_) {
    if (l.reordered()) reorder(l.known().host.ptr<float>(), l.memory.ptr<float>(), l.param->channels_last, false);
    if (l.param->value.device().is_cuda()) upload.add(l.param->value, l.memory);
  }
  upload.run(s);
}

void ModelMemory::count_pass() const {
  for (const auto* p : params_)
    if (p->role == nn::Role::counter) ++*p->value.ptr<std::int64_t>();
}

}  // namespace hpcdl::models
