#include "hpcdl/state/table.h"

#include <algorithm>
#include <utility>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/upload.h"
#include "hpcdl/ops/cast/cast.h"

namespace hpcdl {
namespace {

constexpr std::int64_t kAlign = 256;  // more than any kernel asks for

std::int64_t padded(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

bool trained(const nn::Param* p) { return p->role == nn::Role::trained; }
bool frozen(const nn::Param* p) { return p->role == nn::Role::frozen; }

StateRole role_of(const nn::Param& p) {
  switch (p.role) {
    case nn::Role::trained: return StateRole::value;
    case nn::Role::frozen: return StateRole::frozen;
    case nn::Role::state: return StateRole::buffer;
    case nn::Role::counter: return StateRole::counter;
  }
  fail("state", "{}: there is no role {}", p.name, static_cast<int>(p.role));
}

/// Whether files store its dims in another order.
bool reordered(const StateEntry& e) {
  return e.host && e.param->channels_last.rank() == 4 && e.role != StateRole::moment;
}

/// Converts (N, H, W, C) to (N, C, H, W), or back. F32.
void reorder(const StateEntry& e, bool to_files) {
  const Shape& nhwc = e.param->channels_last;
  const std::int64_t pixels = nhwc[1] * nhwc[2], channels = nhwc[3];
  auto *channels_first = e.host.ptr<float>(), *channels_last = e.staged.ptr<float>();
  for (std::int64_t n = 0; n < nhwc[0]; ++n, channels_first += pixels * channels, channels_last += pixels * channels)
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t p = 0; p < pixels; ++p) {
        float &file = channels_first[c * pixels + p], &memory = channels_last[p * channels + c];
        if (to_files) file = memory;
        else memory = file;
      }
}

StateEntry entry(nn::Param& p, StateRole role, std::string_view ending, const Tensor& memory) {
  StateEntry e{.name = p.name, .role = role, .param = &p, .part = p.part, .memory = memory};
  e.name += ending;
  return e;
}

StateEntry gradient_of(nn::Param& p, const Tensor& memory) { return entry(p, StateRole::gradient, ".grad", memory); }

Tensor bytes_of(const Buffer& b) { return Tensor(b.data(), {{b.bytes()}, DType::u8}, b.device()); }

}  // namespace

/// Consecutive tensors in a block; without memory if the block has none.
class StateTable::Cursor {
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

std::vector<io::NamedTensor> stored(std::span<const StateEntry> entries) {
  std::vector<io::NamedTensor> list;
  for (const auto& e : entries)
    if (e.host.spec()) list.push_back({e.name, e.host, e.part});
  return list;
}

std::vector<io::NamedTensor> StateTable::model_files() const {
  auto list = stored(parameters());
  for (auto& b : stored(buffers())) list.push_back(std::move(b));
  return list;
}

std::vector<const StateGroup*> StateTable::groups() const {
  std::vector<const StateGroup*> list{&values_, &buffers_, &frozen_, &copies_, &gradients_};
  for (const auto& moments : moments_)
    if (const auto alive = moments.lock()) list.push_back(alive.get());
  return list;
}

/// Connects values and modules with their entries.
void StateTable::tell_modules() {
  auto gradient = gradients_.entries.begin();
  auto copy = copies_.entries.begin();
  for (auto* group : {&values_, &buffers_})
    for (auto& e : group->entries) {
      const auto mine = [&](auto& at, const auto& end) -> const StateEntry* {
        return at != end && at->param == e.param ? &*at++ : nullptr;
      };
      e.gradient = mine(gradient, gradients_.entries.end());
      e.copy = mine(copy, copies_.entries.end());
      e.param->value = e.memory.spec();
      e.param->gradient = e.gradient ? e.gradient->memory.spec() : Spec();
      e.param->copy = e.copy ? e.copy->memory.spec() : Spec();
    }
  for (auto& e : frozen_.entries)
    if (e.name == e.param->name) e.param->value = e.memory.spec();
}

void StateTable::bind(Graph& g) const {
  for_each([&](const StateEntry& e) {
    if (e.memory && e.role != StateRole::moment) g.bind(e.name, e.memory);
  });
}

StateGroup& StateTable::group_of(const nn::Param& p) { return trained(&p) ? values_ : frozen(&p) ? frozen_ : buffers_; }

void StateTable::add(nn::Param& p, const Tensor& memory) {
  auto e = entry(p, role_of(p), "", memory);
  e.host = memory;
  if (!frozen(&p)) e.staged = memory;
  group_of(p).entries.push_back(std::move(e));
}

void StateTable::add_value(nn::Param& param, const Tensor& memory) {
  add(param, memory);
  tell_modules();
}

void StateTable::add_frozen(nn::Param& param, std::string_view ending, const Tensor& memory) {
  frozen_.entries.push_back(entry(param, StateRole::frozen, ending, memory));
}

void StateTable::move_values(const std::function<Tensor(const StateEntry&)>& where) {
  for (auto* group : {&values_, &frozen_})
    for (auto& e : group->entries) {
      const bool in_files = static_cast<bool>(e.host), moves = static_cast<bool>(e.staged);
      e.memory = where(e);
      if (in_files) e.host = e.memory;
      if (moves) e.staged = e.memory;
    }
}

void StateTable::allocate(bool with_gradients) {
  std::int64_t values = 0, gradients = 0, others = 0;
  for (const auto* p : params_) {
    if (frozen(p)) continue;
    values += padded(p->spec.bytes());
    if (with_gradients && trained(p)) gradients += padded(p->spec.bytes());
    if (p->channels_last.rank() == 4) others += padded(p->spec.bytes());
  }
  values_.memory = block(values), gradients_.memory = block(gradients), files_ = block(others);
  Cursor value(values_.memory), gradient(gradients_.memory), file(files_);
  for (auto* p : params_) {
    if (!p->spec || frozen(p)) continue;
    add(*p, value.next(p->spec));
    if (with_gradients && trained(p)) gradients_.entries.push_back(gradient_of(*p, gradient.next(p->spec)));
    if (p->channels_last.rank() == 4) group_of(*p).entries.back().host = file.next({p->file_shape(), p->spec.dtype});
  }
  tell_modules();
}

std::int64_t StateTable::bytes() const {
  std::int64_t sum = 0;
  for_each([&](const StateEntry& e) {
    if (e.role == StateRole::moment || (e.role == StateRole::gradient && elsewhere_)) return;
    sum += padded(e.memory.bytes());
    if (e.host.spec() && e.param->channels_last.rank() == 4 && !device_.is_cuda()) sum += padded(e.memory.bytes());
  });
  return sum;
}

std::int64_t StateTable::parameter_count() const {
  std::int64_t n = 0;
  for (const auto* p : params_) n += p->spec && trained(p) ? p->whole().size() : 0;
  return n;
}

std::int64_t StateTable::element_count() const {
  std::int64_t n = 0;
  for (const auto* p : params_) n += p->spec && (trained(p) || frozen(p)) ? p->whole().size() : 0;
  return n;
}

Buffer StateTable::move(const Stream& s, const std::vector<Tensor*>& list, bool with_values) const {
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

void StateTable::to_device(const Stream& s, const std::vector<Tensor*>& others) {
  if (!s.device().is_cuda()) return;
  require(!device_.is_cuda(), "model", "the model is already on a GPU");
  device_ = s.device();
  auto values = others;
  std::vector<Tensor*> gradients;
  for (auto* group : {&values_, &buffers_, &frozen_})
    for (auto& e : group->entries)
      if (e.role != StateRole::counter) values.push_back(&e.memory);
  for (auto& e : gradients_.entries) gradients.push_back(&e.memory);
  on_device_ = move(s, values, true);
  gradients_.memory = move(s, gradients, false);
  tell_modules();
}

void StateTable::place_gradients(const std::function<Tensor(const StateEntry&)>& where) {
  StateGroup placed;
  for (const auto& e : values_.entries) {
    const Tensor there = where(e);
    require(there.spec() == e.memory.spec() && there.is_contiguous() && there.device() == device_, "model",
            "the gradient of \"{}\" must be a contiguous {} on the device of the model, got {}", e.name,
            to_string(e.memory.spec()), to_string(there.spec()));
    placed.entries.push_back(gradient_of(*e.param, there));
  }
  gradients_ = std::move(placed);
  elsewhere_ = true;
  tell_modules();
}

void StateTable::forget_gradients() {
  gradients_.entries.clear();
  tell_modules();
}

void StateTable::own_gradients() {
  if (!elsewhere_) return;
  std::int64_t total = 0;
  for (const auto& e : values_.entries) total += padded(e.memory.bytes());
  StateGroup own;
  own.memory = block(total, device_);
  Cursor at(own.memory, device_);
  for (const auto& e : values_.entries) own.entries.push_back(gradient_of(*e.param, at.next(e.memory.spec())));
  gradients_ = std::move(own);
  elsewhere_ = false;
  tell_modules();
}

void StateTable::keep_copies(DType type) {
  StateGroup copies;
  std::int64_t total = 0;
  for (const auto& e : values_.entries)
    if (e.param->multiplied) total += padded(e.memory.size() * dtype_bytes(type));
  copies.memory = block(total, device_);
  Cursor at(copies.memory, device_);
  for (const auto& e : values_.entries)
    if (e.param->multiplied)
      copies.entries.push_back(entry(*e.param, StateRole::copy, ".copy", at.next({e.memory.shape(), type})));
  copies_ = std::move(copies);
  tell_modules();
}

void StateTable::round_copies(Stream& s) const {
  for (const auto& e : values_.entries)
    if (e.copy && e.copy->memory) Cast::forward(s, e.copy->memory, e.memory, {e.copy->memory.dtype()});
}

std::shared_ptr<const StateGroup> StateTable::add_moments(std::span<const std::string_view> names) {
  const auto group = std::make_shared<StateGroup>();
  std::int64_t total = 0;
  for (const auto& e : values_.entries)
    total += std::ssize(names) * padded(e.memory.size() * std::int64_t{sizeof(float)});
  group->memory = block(total, device_);
  if (device_.is_cuda()) group->host = block(total);
  Cursor at(group->memory, device_), on_host(group->host);
  for (const auto& e : values_.entries)
    for (const auto& name : names) {
      const Spec spec{e.memory.shape(), DType::f32};
      auto& m =
          group->entries.emplace_back(entry(*e.param, StateRole::moment, fmt::format(".{}", name), at.next(spec)));
      m.host = m.staged = device_.is_cuda() ? on_host.next(spec) : m.memory;
    }
  std::erase_if(moments_, [](const auto& m) { return m.expired(); });
  moments_.push_back(group);
  return group;
}

void StateTable::fetch(const Stream& s) const {
  for (const auto* group : groups()) {
    const bool at_once = group->host.bytes() > 0;
    if (at_once) copy(s, bytes_of(group->host), bytes_of(group->memory));
    for (const auto& e : group->entries) {
      if (!at_once && e.staged && e.memory.device().is_cuda()) copy(s, e.staged, e.memory);
      if (reordered(e)) reorder(e, true);
    }
  }
}

void StateTable::store(const Stream& s) const {
  io::Upload upload;
  for_each([&](const StateEntry& e) {
    if (reordered(e)) reorder(e, false);
    if (e.staged && e.memory.device().is_cuda()) upload.add(e.memory, e.staged);
  });
  upload.run(s);
}

void StateTable::count_pass() const {
  for (const auto& e : buffers_.entries)
    if (e.role == StateRole::counter) ++*e.memory.ptr<std::int64_t>();
}

}  // namespace hpcdl
