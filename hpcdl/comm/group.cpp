#include "hpcdl/group.h"

#include <algorithm>
#include <numeric>

#include "hpcdl/comm/device_group.h"
#include "hpcdl/comm/impl.h"
#include "hpcdl/core/element.h"

namespace hpcdl::comm {
namespace {

void check_tensor(const Stream& s, const View& v, Collective what) {
  require(v.device() == s.device(), "comm",
          "{}: expected a tensor on the device of the stream, got one on another device", collective_name(what));
  require(v.is_contiguous(), "comm", "{}: expected a contiguous tensor of {} elements, got one with gaps",
          collective_name(what), v.size());
}

void check_reduce(DType d, Reduce op, Collective what) {
  const bool ok = is_number(d);
  require(ok, "comm", "{}: expected floats or integers, got {}", collective_name(what), dtype_name(d));
  require(op != Reduce::avg || is_float(d), "comm", "{}: expected floats for an average, got {}", collective_name(what),
          dtype_name(d));
}

void check_parts(const Group& g, const View& whole, const View& part, Collective what) {
  require(whole.dtype() == part.dtype() && whole.size() == part.size() * g.size(), "comm",
          "{} of {} ranks: expected one tensor to have {} times the elements of the other, of the same dtype, got {} "
          "{} and {} {}",
          collective_name(what), g.size(), g.size(), whole.size(), dtype_name(whole.dtype()), part.size(),
          dtype_name(part.dtype()));
}

void check_rank(const Group& g, int rank, Collective what) {
  require(rank >= 0 && rank < g.size(), "comm", "{}: expected a rank below {}, got {}", collective_name(what), g.size(),
          rank);
}

Call call_of(Collective what, const View& in, const Tensor& out, std::int64_t count) {
  Call c;
  c.what = what;
  c.dtype = out.dtype() == DType::none ? in.dtype() : out.dtype();
  c.in = in.ptr<std::byte>();
  c.out = out.ptr<std::byte>();
  c.count = count;
  return c;
}

}  // namespace

Group::Group()
    : impl_(std::make_shared<Impl>(std::make_shared<Engine>(nullptr, WorldOptions{}), "self", 0, std::vector<int>{0},
                                   0)) {}

Group Group::described(int rank, int size, std::string name) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Group(std::make_shared<Impl>(std::make_shared<Engine>(nullptr, WorldOptions{}), std::move(name), 0,
                                      std::move(ranks), rank));
}

bool Group::is_described() const { return size() > 1 && !impl_->engine->transport(); }

int Group::rank() const { return impl_->rank; }
int Group::size() const { return static_cast<int>(impl_->world_ranks.size()); }
const std::string& Group::name() const { return impl_->name; }
int Group::local_rank() const { return impl_->local_index; }
Ledger& Group::ledger() const { return impl_->engine->ledger(); }
int Group::world_rank(int rank) const { return impl_->world_ranks.at(static_cast<std::size_t>(rank)); }
int Group::host(int rank) const {
  return impl_->engine->transport() ? impl_->engine->transport()->host(world_rank(rank)) : 0;
}
std::string Group::host_name(int rank) const {
  return impl_->engine->transport() ? impl_->engine->transport()->host_name(world_rank(rank)) : "here";
}
std::string_view Group::transport() const {
  return impl_->engine->transport() ? impl_->engine->transport()->name() : "none";
}

Work Group::all_reduce(const Stream& s, const Tensor& x, Reduce op, Algorithm a) const {
  check_tensor(s, x, Collective::all_reduce);
  check_reduce(x.dtype(), op, Collective::all_reduce);
  Call c = call_of(Collective::all_reduce, x, x, x.size());
  c.op = op, c.beside = beside_;
  c.algorithm = a;
  return impl_->submit(s, c, blocking_);
}

Work Group::reduce_scatter(const Stream& s, const Tensor& out, const View& in, Reduce op, Algorithm a) const {
  check_tensor(s, out, Collective::reduce_scatter);
  check_tensor(s, in, Collective::reduce_scatter);
  check_reduce(in.dtype(), op, Collective::reduce_scatter);
  check_parts(*this, in, out, Collective::reduce_scatter);
  Call c = call_of(Collective::reduce_scatter, in, out, out.size());
  c.op = op;
  c.algorithm = a;
  return impl_->submit(s, c, blocking_);
}

Work Group::all_gather(const Stream& s, const Tensor& out, const View& in, Algorithm a) const {
  check_tensor(s, out, Collective::all_gather);
  check_tensor(s, in, Collective::all_gather);
  check_parts(*this, out, in, Collective::all_gather);
  Call c = call_of(Collective::all_gather, in, out, in.size());
  c.algorithm = a;
  return impl_->submit(s, c, blocking_);
}

Work Group::all_to_all(const Stream& s, const Tensor& out, const View& in, Algorithm a) const {
  check_tensor(s, out, Collective::all_to_all);
  check_tensor(s, in, Collective::all_to_all);
  require(in.dtype() == out.dtype() && in.size() == out.size() && in.size() % size() == 0, "comm",
          "all_to_all of {} ranks: expected two tensors of the same dtype and size, which {} divides, got {} and {} "
          "elements",
          size(), size(), in.size(), out.size());
  Call c = call_of(Collective::all_to_all, in, out, in.size() / size());
  c.algorithm = a;
  return impl_->submit(s, c, blocking_);
}

Work Group::broadcast(const Stream& s, const Tensor& x, int root) const {
  check_tensor(s, x, Collective::broadcast);
  check_rank(*this, root, Collective::broadcast);
  Call c = call_of(Collective::broadcast, x, x, x.size());
  c.peer = root;
  return impl_->submit(s, c, blocking_);
}

Work Group::send(const Stream& s, const View& x, int to) const {
  check_tensor(s, x, Collective::send);
  check_rank(*this, to, Collective::send);
  require(to != rank(), "comm", "send: expected another rank, got {}, which is this one", to);
  Call c = call_of(Collective::send, x, {}, x.size());
  c.peer = to;
  return impl_->submit(s, c, blocking_);
}

Work Group::receive(const Stream& s, const Tensor& x, int from) const {
  check_tensor(s, x, Collective::receive);
  check_rank(*this, from, Collective::receive);
  require(from != rank(), "comm", "receive: expected another rank, got {}, which is this one", from);
  Call c = call_of(Collective::receive, {}, x, x.size());
  c.peer = from;
  return impl_->submit(s, c, blocking_);
}

Work Group::barrier(const Stream& s) const {
  Call c;
  return impl_->submit(s, c, blocking_);
}

Group Group::blocking() const {
  Group g = *this;
  g.blocking_ = true;
  return g;
}

Group Group::beside() const {
  Group g = *this;
  g.beside_ = true;
  return g;
}

Group Group::split(int color, int key, std::string name) const {
  const int n = size();
  Pool pool(1);
  const Stream s(pool);
  struct Vote {
    std::int32_t color, key;
  };
  std::vector<Vote> votes(static_cast<std::size_t>(n));
  votes[static_cast<std::size_t>(rank())] = {color, key};
  Call c;
  c.what = Collective::split;
  c.dtype = DType::i32;
  c.in = reinterpret_cast<const std::byte*>(&votes[static_cast<std::size_t>(rank())]);
  c.out = reinterpret_cast<std::byte*>(votes.data());
  c.count = 2;
  impl_->submit(s, c, true);
  std::vector<int> members;
  for (int r = 0; r < n; ++r)
    if (votes[static_cast<std::size_t>(r)].color == color) members.push_back(r);
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return votes[static_cast<std::size_t>(a)].key < votes[static_cast<std::size_t>(b)].key;
  });
  const int mine = static_cast<int>(std::find(members.begin(), members.end(), rank()) - members.begin());
  for (int& m : members) m = world_rank(m);
  const auto id = mix(mix(impl_->id, static_cast<std::uint64_t>(impl_->number)), static_cast<std::uint64_t>(color));
  auto child = std::make_shared<Impl>(impl_->engine, std::move(name), id, std::move(members), mine);
  child->make_shared();
  return Group(std::move(child));
}

std::shared_ptr<Window> Group::share(std::int64_t bytes) const { return impl_->share(bytes); }

void Group::connect(Device device) const {
  if (size() > 1) impl_->connect(device);
}

std::shared_ptr<DeviceGroup> Group::device_group() const {
  std::lock_guard lock(impl_->device_mutex);
  return impl_->device;
}

Counters Group::counters() const {
  const auto& live = impl_->counters;
  const auto& clock = impl_->engine->clock();
  return {.calls = live.calls.load(),
          .bytes = live.bytes.load(),
          .wire_bytes = live.wire_bytes.load(),
          .seconds = clock.seconds(live.busy.load()),
          .waited_seconds = clock.seconds(live.waited.load())};
}

void Group::close() {
  if (impl_->closed) return;
  Pool pool(1);
  blocking().barrier(Stream(pool));
  impl_->closed = true;
}

void Group::abandon(std::string_view why) const noexcept {
  if (const auto device = device_group()) device->give_up();
  impl_->engine->abandon(why);
}

}  // namespace hpcdl::comm
