#include "hpcdl/state/table.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/upload.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/state/file_part.h"
#include "hpcdl/state/moment_blocks.h"
#include "hpcdl/state/page_locked.h"

namespace hpcdl {
namespace {

constexpr std::int64_t kAlign = 256;  // more than any kernel asks for

std::int64_t padded(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

bool trained(const nn::Param* p) { return p->role == nn::Role::trained; }
bool is_frozen(const nn::Param* p) { return p->role == nn::Role::frozen; }

StateRole role_of(const nn::Param& p) {
  switch (p.role) {
    case nn::Role::trained: return StateRole::value;
    case nn::Role::frozen: return StateRole::frozen;
    case nn::Role::state: return StateRole::buffer;
    case nn::Role::counter: return StateRole::counter;
  }
  fail("state", "{}: there is no role {}", p.name, static_cast<int>(p.role));
}

/// Whether files store its dims in another order, and `host` is in theirs.
bool reordered(const StateEntry& e) { return e.host && e.staged && e.host.data() != e.staged.data(); }

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
  explicit Cursor(const Buffer& b, Device device = {}) : begin_(b.data()), at_(begin_), device_(device) {}
  Tensor at(std::int64_t offset, const Spec& spec) const {
    return Tensor(begin_ ? begin_ + offset : nullptr, spec, device_);
  }
  Tensor next(const Spec& spec) {
    const Tensor t(at_, spec, device_);
    if (at_) at_ += padded(spec.bytes());
    return t;
  }

 private:
  std::byte *begin_, *at_;
  Device device_;
};

std::vector<io::NamedTensor> stored(std::span<const StateEntry> entries) {
  std::vector<io::NamedTensor> list;
  for (const auto& e : entries)
    if (e.host.spec()) list.push_back({e.name, e.host, e.part});
  return list;
}

std::vector<io::NamedTensor> StateTable::model_files() const {
  std::vector<io::NamedTensor> list;
  for (std::size_t i = 0; i < values_.entries.size(); ++i) {
    const auto& e = layout_ && !layout_->places[i].whole ? pieces_.entries[i] : values_.entries[i];
    if (e.host.spec()) list.push_back({e.param->name, e.host, e.part});
  }
  for (auto& b : stored(buffers())) list.push_back(std::move(b));
  return list;
}

std::vector<const StateGroup*> StateTable::groups() const {
  std::vector<const StateGroup*> list{&values_, &buffers_,         &frozen_,      &copies_,       &gradients_,
                                      &pieces_, &gradient_pieces_, &copy_pieces_, &frozen_pieces_};
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
  make_pieces();
}

/// The pieces of this rank, wherever the values, copies and gradients lie now.
void StateTable::make_pieces() {
  for (auto* group : {&pieces_, &gradient_pieces_, &copy_pieces_}) group->entries.clear();
  if (!layout_) return;
  const auto count = values_.entries.size();
  const Tensor shares = value_shares(), shares_of_copies = copy_shares();
  for (auto* group : {&pieces_, &gradient_pieces_, &copy_pieces_}) group->entries.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const StateEntry& e = values_.entries[i];
    const auto& place = layout_->places[i];
    const auto piece = [&](StateGroup& to, StateRole role, const Tensor& of, std::int64_t begin) {
      const auto type = of.dtype();
      const Tensor memory(of.data() ? of.ptr<std::byte>() + begin * dtype_bytes(type) : nullptr,
                          {{place.mine.count()}, type}, device_);
      const auto ending = role == StateRole::gradient ? ".grad.share"
                          : role == StateRole::copy   ? ".copy.share"
                                                      : ".share";
      auto& p = to.entries.emplace_back(entry(*e.param, role, ending, memory));
      p.part = file_part(*e.param, place.mine);
      p.counted = false;
      return &p;
    };
    auto* value = place.whole ? piece(pieces_, StateRole::value, e.memory, place.mine.begin)
                              : piece(pieces_, StateRole::value, shares, place.share);
    if (!place.whole) {
      value->counted = true;
      value->host = value->staged = Cursor(shares_).at(place.share * std::int64_t{sizeof(float)}, value->memory.spec());
    }
    if (e.copy) {
      auto* copy = layout_->whole_copies ? piece(copy_pieces_, StateRole::copy, e.copy->memory, place.mine.begin)
                                         : piece(copy_pieces_, StateRole::copy, shares_of_copies, place.share);
      copy->counted = !layout_->whole_copies;
      value->copy = copy;
    }
    if (!e.gradient) continue;
    auto* gradient = gradient_shares_.spec()
                         ? piece(gradient_pieces_, StateRole::gradient, gradient_shares_, place.share)
                         : piece(gradient_pieces_, StateRole::gradient, e.gradient->memory, place.mine.begin);
    gradient->counted = static_cast<bool>(gradient_shares_.spec());
    value->gradient = gradient;
  }
}

void StateTable::divide(std::optional<FlatLayout> layout) {
  require(!device_.is_cuda(), "model", "the model is already on a GPU: divide its values before it is moved there");
  require(!layout || layout->places.size() == values_.entries.size(), "model",
          "expected a place for each of the {} parameters, got {}", values_.entries.size(),
          layout ? layout->places.size() : 0);
  for (const auto& e : values_.entries)
    require(described_ || source_ || e.memory, "model", "this rank has only a piece of \"{}\": open the model again",
            e.name);
  layout_ = std::move(layout);
  if (layout_) move_to_flat_block();
  else fill();
  tell_modules();
}

void StateTable::divide_frozen(std::span<const FlatLayout::Place> places, std::int64_t share_bytes) {
  require(!device_.is_cuda(), "model", "the model is already on a GPU: divide its values before it is moved there");
  require(places.size() == frozen_.entries.size(), "model", "expected a place for each of {} frozen tensors, got {}",
          frozen_.entries.size(), places.size());
  for (const auto& e : frozen_.entries)
    require(described_ || e.memory || e.memory.size() == 0, "model",
            "this rank has only a piece of \"{}\": open the model again", e.name);
  auto memory = block(share_bytes);
  if (memory.bytes() > 0) std::memset(memory.data(), 0, static_cast<std::size_t>(memory.bytes()));  // gaps are sent
  for (std::size_t i = 0; i < places.size(); ++i) {
    auto& e = frozen_.entries[i];
    const auto& [offset, mine, share, whole] = places[i];
    const Tensor piece(memory.data() ? memory.data() + share : nullptr, {{mine.count()}, DType::u8});
    if (piece)
      std::memcpy(piece.data(), e.memory.ptr<std::byte>() + mine.begin, static_cast<std::size_t>(mine.count()));
    frozen_pieces_.entries.push_back(entry(*e.param, StateRole::frozen, "", piece));
    frozen_pieces_.entries.back().name = e.name + ".share";
    e.memory = Tensor(nullptr, e.memory.spec());
    e.host = e.staged = {};
    e.counted = false, e.param->gathered = true;
  }
  frozen_pieces_.memory = std::move(memory), frozen_bytes_ = share_bytes;
}

Tensor StateTable::frozen_shares() const {
  return Tensor(frozen_pieces_.memory.data(), {{frozen_bytes_}, DType::u8}, device_);
}

/// Moves the bytes of frozen tensors that this rank keeps.
void StateTable::upload_frozen(const Stream& s) {
  auto there = block(frozen_bytes_, s.device());
  if (!described_) {
    io::Upload upload;
    upload.add(bytes_of(there), bytes_of(frozen_pieces_.memory));
    upload.run(s);
  }
  for (auto& e : frozen_pieces_.entries) {
    const auto at = e.memory.data() ? e.memory.ptr<std::byte>() - frozen_pieces_.memory.data() : 0;
    e.memory = Tensor(there.data() ? there.data() + at : nullptr, e.memory.spec(), s.device());
  }
  for (auto& e : frozen_.entries) e.memory = Tensor(nullptr, e.memory.spec(), s.device());
  frozen_pieces_.memory = std::move(there);
}

void StateTable::move_to_flat_block() {
  constexpr std::int64_t kBytes = sizeof(float);
  Buffer memory = block((layout_->elements - layout_->divided) * kBytes);
  shares_ = block(layout_->share_divided * kBytes);
  if (shares_.bytes() > 0) std::memset(shares_.data(), 0, static_cast<std::size_t>(shares_.bytes()));  // gaps are sent
  const Cursor flat(memory), shares(shares_);
  for (std::size_t i = 0; i < values_.entries.size(); ++i) {
    auto& e = values_.entries[i];
    const auto& place = layout_->places[i];
    require(e.memory.dtype() == DType::f32, "model", "\"{}\" is {}: only F32 values can be divided", e.name,
            to_string(e.memory.spec()));
    const auto move = [&](const Tensor& there, std::int64_t from) {
      if (!described_) read_values(e, from, there);
      return there;
    };
    if (place.whole) {
      const auto there = move(flat.at((place.offset - layout_->divided) * kBytes, e.memory.spec()), 0);
      if (e.param->channels_last.rank() != 4) e.host = there;
      e.memory = e.staged = there;
    } else {
      move(shares.at(place.share * kBytes, {{place.mine.count()}, DType::f32}), place.mine.begin);
      e.memory = Tensor(nullptr, e.memory.spec());
      e.host = e.staged = {};
    }
    e.counted = place.whole;
  }
  values_.memory = std::move(memory);
  source_ = nullptr;
}

/// Copies elements of a value, from number `from` on, to where they stay.
void StateTable::read_values(const StateEntry& e, std::int64_t from, const Tensor& to) const {
  if (to.size() == 0) return;
  if (source_) source_(e, {from, from + to.size()}, to.reshaped({to.size()}));
  else std::memcpy(to.data(), e.memory.ptr<float>() + from, static_cast<std::size_t>(to.bytes()));
}

void StateTable::fill() {
  if (!source_) return;
  std::int64_t bytes = 0;
  for (const auto& e : values_.entries) bytes += padded(e.memory.bytes());
  Buffer memory = block(bytes);
  Cursor at(memory);
  for (auto& e : values_.entries) {
    const Tensor there = at.next(e.memory.spec());
    read_values(e, 0, there);
    if (e.param->channels_last.rank() != 4) e.host = there;
    e.memory = e.staged = there;
  }
  values_.memory = std::move(memory);
  source_ = nullptr;
  tell_modules();
}

void StateTable::lend_whole_values(const std::function<Tensor(const StateEntry&)>& where) {
  for (std::size_t i = 0; layout_ && i < values_.entries.size(); ++i)
    if (!layout_->places[i].whole) values_.entries[i].host = where(values_.entries[i]);
}

Tensor StateTable::value_block() const {
  const auto& memory = device_.is_cuda() ? values_on_device_ : values_.memory;
  return Tensor(memory.data(), {{layout_->elements - layout_->divided}, DType::f32}, device_);
}

Tensor StateTable::copy_block() const {
  if (!layout_->whole_copies) return Tensor(nullptr, {{0}, copy_type()}, device_);
  return Tensor(copies_.memory.data(), {{layout_->copied}, copy_type()}, device_);
}

Tensor StateTable::value_shares() const {
  const auto& memory = device_.is_cuda() ? shares_on_device_ : shares_;
  return Tensor(memory.data(), {{layout_->share_divided}, DType::f32}, device_);
}

Tensor StateTable::copy_shares() const {
  if (layout_->whole_copies) return Tensor(nullptr, {{0}, copy_type()}, device_);
  return Tensor(copies_.memory.data(), {{layout_->share_copied()}, copy_type()}, device_);
}

void StateTable::bind(Graph& g) const {
  for_each([&](const StateEntry& e) {
    if (e.memory && e.role != StateRole::moment) g.bind(e.name, e.memory);
  });
}

StateGroup& StateTable::group_of(const nn::Param& p) {
  return trained(&p) ? values_ : is_frozen(&p) ? frozen_ : buffers_;
}

void StateTable::add(nn::Param& p, const Tensor& memory) {
  auto e = entry(p, role_of(p), "", memory);
  e.host = memory;
  if (!is_frozen(&p)) e.staged = memory;
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

void StateTable::allocate(bool with_gradients, ValueSource source) {
  source_ = std::move(source);
  std::int64_t values = 0, buffers = 0, gradients = 0, others = 0;
  for (const auto* p : params_) {
    if (is_frozen(p)) continue;
    (trained(p) ? values : buffers) += padded(p->spec.bytes());
    if (with_gradients && trained(p)) gradients += padded(p->spec.bytes());
    if (p->channels_last.rank() == 4) others += padded(p->spec.bytes());
  }
  values_.memory = source_ ? Buffer() : block(values), buffers_.memory = block(buffers),
  gradients_.memory = block(gradients), files_ = block(others);
  Cursor value(values_.memory), buffer(buffers_.memory), gradient(gradients_.memory), file(files_);
  for (auto* p : params_) {
    if (!p->spec || is_frozen(p)) continue;
    add(*p, (trained(p) ? value : buffer).next(p->spec));
    if (with_gradients && trained(p)) gradients_.entries.push_back(gradient_of(*p, gradient.next(p->spec)));
    if (p->channels_last.rank() == 4) group_of(*p).entries.back().host = file.next({p->file_shape(), p->spec.dtype});
  }
  tell_modules();
}

void StateTable::keep_in(StateGroup& group, const std::function<bool(const nn::Param&)>& mine) {
  const auto stays = [&](const StateEntry& e) { return e.role == StateRole::counter || mine(*e.param); };
  const bool imagined = described_ || (source_ && &group == &values_);
  const auto owned = [&](const StateEntry& e) {
    const auto* begin = group.memory.data();
    const auto* at = e.memory.ptr<std::byte>();
    return imagined || (begin && at >= begin && at < begin + group.memory.bytes());
  };
  std::int64_t bytes = 0;
  for (const auto& e : group.entries)
    if (stays(e) && owned(e)) bytes += padded(e.memory.bytes());
  Buffer memory = imagined ? Buffer() : block(bytes);
  Cursor at(memory);
  std::vector<StateEntry> kept;
  for (auto& e : group.entries) {
    if (!stays(e)) {
      if (e.role == StateRole::gradient || e.role == StateRole::copy) continue;
      auto& gone = missing_.emplace_back(std::move(e));
      gone.memory = Tensor(nullptr, gone.memory.spec()), gone.host = Tensor(nullptr, gone.host.spec()),
      gone.staged = {};
      gone.gradient = gone.copy = nullptr;
      continue;
    }
    auto& k = kept.emplace_back(std::move(e));
    if (!owned(k)) continue;
    const Tensor there = at.next(k.memory.spec());
    const auto* before = k.memory.data();
    if (!imagined && k.role != StateRole::gradient)
      std::memcpy(there.data(), before, static_cast<std::size_t>(there.bytes()));
    k.memory = there;
    for (auto* same : {&k.host, &k.staged})
      if (same->spec() && same->data() == before) *same = there;
  }
  group.entries = std::move(kept);
  if (bytes > 0 || group.memory.bytes() > 0) group.memory = std::move(memory);
}

void StateTable::keep(const std::function<bool(const nn::Param&)>& mine) {
  require(!device_.is_cuda() && !layout_, "model",
          "the model is already on a GPU or divided: choose the layers of a rank before that");
  for (auto* group : {&values_, &buffers_, &frozen_, &gradients_, &copies_}) keep_in(*group, mine);
  tell_modules();
}

void StateTable::with_missing(const std::function<Tensor(const StateEntry&)>& where, const std::function<void()>& f) {
  if (missing_.empty()) return f();
  std::map<const nn::Param*, std::size_t> place;
  for (const auto* p : params_) place.emplace(p, place.size());
  const auto mine = std::pair(values_.entries, buffers_.entries);
  for (const auto& e : missing_) {
    if (e.role == StateRole::frozen) continue;
    auto& there = (e.role == StateRole::value ? values_ : buffers_).entries.emplace_back(e);
    there.host = where(e);
  }
  for (auto* group : {&values_, &buffers_})
    std::stable_sort(group->entries.begin(), group->entries.end(),
                     [&](const auto& a, const auto& b) { return place.at(a.param) < place.at(b.param); });
  f();
  std::tie(values_.entries, buffers_.entries) = mine;
}

std::int64_t StateTable::bytes() const {
  std::int64_t sum = 0;
  for_each([&](const StateEntry& e) {
    if (!e.counted || (e.on_host && device_.is_cuda()) || e.on_disk >= 0 || e.role == StateRole::moment ||
        (e.role == StateRole::gradient && elsewhere_))
      return;
    if (!layout_ || (e.role != StateRole::value && e.role != StateRole::copy)) sum += padded(e.memory.bytes());
    if (e.host.spec() && e.param->channels_last.rank() == 4 && !device_.is_cuda()) sum += padded(e.memory.bytes());
  });
  if (!layout_) return sum;
  sum += value_block().bytes() + value_shares().bytes();
  return copies_.entries.empty() ? sum : sum + copy_block().bytes() + copy_shares().bytes();
}

std::int64_t StateTable::parameter_count() const {
  std::int64_t n = 0;
  for (const auto* p : params_) n += p->spec && trained(p) ? p->whole().size() : 0;
  return n;
}

std::int64_t StateTable::element_count() const {
  std::int64_t n = 0;
  for (const auto* p : params_) n += p->spec && (trained(p) || is_frozen(p)) ? p->whole().size() : 0;
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

/// Those that do not stay on the host.
Buffer StateTable::move_gradients(const Stream& s) {
  std::vector<Tensor*> list;
  for (auto& e : gradients_.entries)
    if (!e.on_host) list.push_back(&e.memory);
  if (list.size() < gradients_.entries.size()) {
    gradients_on_host_ = std::move(gradients_.memory);
    pinned_gradients_ = page_locked(gradients_on_host_, device_, "gradients");
  }
  return move(s, list, false);
}

/// Moves the block of values; gaps between them stay unset.
void StateTable::upload_flat(const Stream& s) {
  constexpr std::int64_t kBytes = sizeof(float);
  values_on_device_ = block((layout_->elements - layout_->divided) * kBytes, s.device());
  shares_on_device_ = block(shares_.bytes(), s.device());
  const Cursor flat(values_on_device_, s.device());
  io::Upload upload;
  for (std::size_t i = 0; i < values_.entries.size(); ++i) {
    auto& e = values_.entries[i];
    const auto& place = layout_->places[i];
    const Tensor there = place.whole ? flat.at((place.offset - layout_->divided) * kBytes, e.memory.spec())
                                     : Tensor(nullptr, e.memory.spec(), s.device());
    if (place.whole) upload.add(there, e.memory);
    e.memory = there;
  }
  if (described_) return;
  upload.add(bytes_of(shares_on_device_), bytes_of(shares_));
  upload.run(s);
}

void StateTable::to_device(const Stream& s, const std::vector<Tensor*>& others,
                           const std::function<Tensor(const StateEntry&)>& elsewhere) {
  if (!s.device().is_cuda()) {
    const auto where = [&](const StateEntry& e) {
      const Tensor there = elsewhere(e);
      return there ? there : e.memory;
    };
    if (elsewhere) move_values(where);
    return;
  }
  require(!device_.is_cuda(), "model", "the model is already on a GPU");
  device_ = s.device();
  auto values = others;
  for (auto* group : {&values_, &buffers_, &frozen_})
    for (auto& e : group->entries) {
      if (e.role == StateRole::counter || (layout_ && group == &values_) || e.param->gathered || e.on_host) continue;
      if (const Tensor there = elsewhere ? elsewhere(e) : Tensor()) e.memory = there;
      else values.push_back(&e.memory);
    }
  if (layout_) upload_flat(s);
  if (std::ranges::any_of(values_.entries, &StateEntry::on_host))
    pinned_values_ = page_locked(values_.memory, device_, "weights");
  if (frozen_bytes_ > 0) upload_frozen(s);
  on_device_ = move(s, values, true);
  gradients_.memory = move_gradients(s);
  tell_modules();
}

void StateTable::place_gradients(const std::function<Tensor(const StateEntry&)>& where, const Tensor& shares) {
  StateGroup placed;
  gradient_shares_ = shares;
  for (const auto& e : values_.entries) {
    const Tensor there = where(e);
    require(there.spec() == e.memory.spec() && there.is_contiguous() && there.device() == device_, "model",
            "the gradient of \"{}\" must be a contiguous {} on the device of the model, got {}", e.name,
            to_string(e.memory.spec()), to_string(there.spec()));
    placed.entries.push_back(gradient_of(*e.param, there));
    placed.entries.back().counted = !shares.spec();
  }
  gradients_ = std::move(placed);
  elsewhere_ = true;
  tell_modules();
}

void StateTable::forget_gradients() {
  gradients_.entries.clear();
  gradient_shares_ = {};
  tell_modules();
}

void StateTable::own_gradients() {
  gradient_shares_ = {};
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

void StateTable::keep_copies(DType type, bool memory) {
  StateGroup copies;
  std::int64_t total = 0, stay = 0;
  for (const auto& e : values_.entries)
    if (e.param->multiplied) (e.all_on_host ? stay : total) += padded(e.memory.size() * dtype_bytes(type));
  const bool whole = !layout_ || layout_->whole_copies;
  if (layout_) total = (whole ? layout_->copied : layout_->share_copied()) * dtype_bytes(type);
  pinned_copies_ = {};
  copies_on_host_ = memory ? block(stay) : Buffer();
  if (memory) copies.memory = block(total, device_);
  pinned_copies_ = page_locked(copies_on_host_, device_, "16-bit copies of weights");
  Cursor at(copies.memory, device_), here(copies_on_host_);
  for (std::size_t i = 0; i < values_.entries.size(); ++i) {
    const auto& e = values_.entries[i];
    if (!e.param->multiplied) continue;
    const Spec spec{e.memory.shape(), type};
    const Tensor there = e.all_on_host ? here.next(spec)
                         : !whole      ? Tensor(nullptr, spec, device_)
                         : layout_     ? at.at(layout_->places[i].offset * dtype_bytes(type), spec)
                                       : at.next(spec);
    copies.entries.push_back(entry(*e.param, StateRole::copy, ".copy", there));
    copies.entries.back().counted = whole, copies.entries.back().on_host = e.all_on_host;
  }
  copies_ = std::move(copies);
  tell_modules();
}

void StateTable::round_copies(Stream& s) const {
  if (layout_ && !layout_->whole_copies && copies_.memory.bytes() > 0)  // gaps, because ranks send all of it
    Fill::forward(s, Tensor(copies_.memory.data(), {{copies_.memory.bytes() / 4}, DType::f32}, device_), {});
  for (std::size_t i = 0; i < values_.entries.size(); ++i) {
    const auto& e = layout_ && !layout_->places[i].whole ? pieces_.entries[i] : values_.entries[i];
    if (e.copy && e.copy->memory && e.memory.size() > 0)
      Cast::forward(s, e.copy->memory, e.memory, {e.copy->memory.dtype()});
  }
}

std::shared_ptr<const StateGroup> StateTable::add_moments(std::span<const std::string_view> names,
                                                          const MomentPlace& place) {
  const auto group = std::make_shared<StateGroup>();
  const auto device = place.on_host || place.folder ? Device() : device_;
  require(!place.coded || (!place.folder && !device_.is_cuda()), "state",
          "moments of 8 bits lie with a model in the memory of a CPU");
  std::vector<NewMoment> added;
  std::int64_t total = 0;
  for (std::size_t i = 0; const auto& e : updated()) {
    // Files hold moments in the order of memory.
    const auto part = layout_ ? Part::flat(e.param->whole(), layout_->places[i++].mine, e.param->part) : e.part;
    add_new_moments(added, *e.param, {e.memory.shape(), part}, names, place.coded);
  }
  for (const auto& n : added) total += padded(n.spec.bytes());
  if (!place.folder) group->memory = block(total, device);
  if (device.is_cuda()) group->host = block(total);
  Cursor at(group->memory, device), files(group->host);
  for (const auto& n : added) {
    auto& m = group->entries.emplace_back(entry(*n.of, StateRole::moment, n.ending, at.next(n.spec)));
    m.part = n.part;
    m.host = m.staged = device.is_cuda() ? files.next(n.spec) : m.memory;
  }
  if (place.folder) place_on_disk(*group, names.size(), *place.folder);
  std::erase_if(moments_, [](const auto& m) { return m.expired(); });
  moments_.push_back(group);
  return group;
}

void StateTable::fetch(const Stream& s) const {
  for (const bool of_passes : {true, false}) queue_fetch(s, of_passes);
  s.synchronize();
  for (const bool copied : {true, false}) order_for_files(copied);
}

void StateTable::queue_fetch(const Stream& s, bool of_passes) const {
  if (!device_.is_cuda()) return;
  for (const auto* group : groups()) {
    if ((group == &buffers_) != of_passes) continue;
    if (group->host.bytes() > 0) {
      copy_to_pinned(s, group->host.data(), bytes_of(group->memory));
      continue;
    }
    for (const auto& e : group->entries)
      if (e.staged && e.memory.device().is_cuda()) copy_to_pinned(s, e.staged.data(), e.memory);
  }
}

void StateTable::order_for_files(bool copied) const {
  for_each([&](const StateEntry& e) {
    if (reordered(e) && e.memory.device().is_cuda() == copied) reorder(e, true);
  });
}

void StateTable::keep_on_host(const Choice& values, const Choice& with_all) {
  require(!device_.is_cuda() || (!values && !with_all), "model",
          "the model is already on a GPU: its values no longer stay on the host");
  const auto* begin = values_.memory.data();
  auto gradient = gradients_.entries.begin();
  for (auto& e : values_.entries) {
    const auto* at = static_cast<const std::byte*>(e.memory.data());
    const bool own = described_ || (begin && at >= begin && at < begin + values_.memory.bytes());
    e.all_on_host = own && with_all && with_all(e);
    e.on_host = e.all_on_host || (own && values && values(e));
    if (gradient != gradients_.entries.end() && gradient->param == e.param) (gradient++)->on_host = e.all_on_host;
  }
}

std::vector<const Buffer*> StateTable::fetched_memory() const {
  std::vector<const Buffer*> list;
  if (!device_.is_cuda()) return list;
  if (!pinned_values_) list.push_back(&values_.memory);
  list.push_back(&buffers_.memory);
  list.push_back(&shares_);
  for (const auto& moments : moments_)
    if (const auto alive = moments.lock()) list.push_back(&alive->host);
  return list;
}

void StateTable::store(const Stream& s) const {
  io::Upload upload;
  for_each([&](const StateEntry& e) {
    if (reordered(e)) reorder(e, false);
    if (e.staged && e.memory.device().is_cuda()) upload.add(e.memory, e.staged);
  });
  upload.run(s);
  settle_files();
}

void StateTable::count_pass() const {
  for (const auto& e : buffers_.entries)
    if (e.role == StateRole::counter) ++*e.memory.ptr<std::int64_t>();
}

}  // namespace hpcdl
