#include "hpcdl/comm/impl.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <numeric>

#include "hpcdl/comm/algo/reduction.h"
#include "hpcdl/comm/device_group.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/lowest_cpu.h"
#include "hpcdl/pool.h"

namespace hpcdl::comm {
namespace {

template <std::size_t N> void put(char (&to)[N], std::string_view from) {
  const std::size_t n = std::min(from.size(), N - 1);
  from.copy(to, n);
  to[n] = 0;
}

}  // namespace

Shared::Shared(std::shared_ptr<Window> window, std::vector<int> ranks, int index)
    : window_(std::move(window)), ranks_(std::move(ranks)), index_(index) {
  flag(index_, kSeat).store(static_cast<std::uint64_t>(lowest_cpu()) + 1, std::memory_order_relaxed);
}

std::optional<bool> Shared::has_processor_each() const {
  const auto mine = flag(index_, kSeat).load(std::memory_order_relaxed);
  int here = 0;
  for (int i = 0; i < size(); ++i) {
    const auto seat = flag(i, kSeat).load(std::memory_order_relaxed);
    if (seat == 0) return {};
    here += seat == mine;
  }
  return here <= usable_cpus();
}

Group::Impl::Impl(std::shared_ptr<Engine> e, std::string n, std::uint64_t i, std::vector<int> ranks, int r)
    : engine(std::move(e)), name(std::move(n)), id(i), world_ranks(std::move(ranks)), rank(r) {
  const Transport* t = engine->transport();
  std::map<int, int> ranks_of;  // by host
  for (const int k : world_ranks) on_host = std::max(on_host, ++ranks_of[t ? t->host(k) : 0]);
  hosts = static_cast<int>(ranks_of.size());
  for (int k = 0; k < static_cast<int>(world_ranks.size()); ++k) {
    if (t && t->host(world_ranks[static_cast<std::size_t>(k)]) != t->host(t->rank())) continue;
    if (k == rank) local_index = static_cast<int>(local.size());
    local.push_back(k);
  }
}

Group::Impl::~Impl() {
  // A thread that throws while work is under way does not wait for it.
  if (std::uncaught_exceptions() > 0 && !engine->quiet()) engine->abandon("an error ended its work");
  engine->close(*this);
}

/// More ranks than that do not sum in shared memory (can_share() in policy.cpp), so they need none.
bool Group::Impl::can_share() const { return on_host <= algo::kMostTogether; }

void Group::Impl::make_shared() {
  if (local.size() < 2 || !can_share()) return;
  std::vector<int> here;
  for (const int r : local) here.push_back(world_ranks[static_cast<std::size_t>(r)]);
  auto window = engine->share(here, static_cast<std::uint32_t>(mix(id, 1) & 0x7fffffffu), Shared::kBytes);
  if (window) shared = std::make_unique<Shared>(std::move(window), local, local_index);
}

std::shared_ptr<Window> Group::Impl::share(std::int64_t bytes) {
  require(!closed, "comm", "the group {} has been closed", name);
  require(bytes >= 0, "comm", "share: expected a number of bytes, got {}", bytes);
  if (!engine->transport() || !can_share()) return nullptr;
  ++number;
  std::vector<int> here;
  for (const int r : local) here.push_back(world_ranks[static_cast<std::size_t>(r)]);
  auto window = engine->share(
      here,
      static_cast<std::uint32_t>(mix(mix(id, static_cast<std::uint64_t>(number)), static_cast<std::uint64_t>(bytes)) &
                                 0x7fffffffu),
      bytes);
  if (window) windows.push_back({window->block(local_index), window->bytes(), window, window.get()});
  return window;
}

InWindow Group::Impl::place(const std::byte* data, std::int64_t bytes) const {
  for (const OwnBlock& r : windows)
    if (data >= r.begin && data + bytes <= r.begin + r.bytes && !r.window.expired()) return {r.raw, data - r.begin};
  return {};
}

std::uint32_t Group::Impl::tag_of(const Call& call, std::int64_t n) const {
  const auto small = static_cast<std::uint64_t>(one_to_one(call.what) ? Collective::send : call.what) |
                     std::uint64_t(call.op) << 8 | std::uint64_t(call.algorithm) << 16 |
                     std::uint64_t(call.dtype) << 24 | std::uint64_t(call.in_place ? 1 : 0) << 32 |
                     std::uint64_t(call.out_place ? 1 : 0) << 33 |
                     (call.what == Collective::broadcast ? std::uint64_t(call.peer) << 40 : 0);
  // Sender and receiver may use different names for a message.
  const std::uint64_t name_of_tensor = one_to_one(call.what) ? 0 : Label::current_hash();
  const std::uint64_t key =
      mix(mix(id ^ static_cast<std::uint64_t>(n) ^ name_of_tensor, small), static_cast<std::uint64_t>(call.count));
  const auto places =
      static_cast<std::uint64_t>(call.in_place.offset) * 31 + static_cast<std::uint64_t>(call.out_place.offset);
  return static_cast<std::uint32_t>((places ? mix(key, places) : key) & 0x7fffffffu);
}

LedgerEntry Group::Impl::entry_of(const Call& call) {
  std::int64_t n;
  if (call.what == Collective::send) n = ++sent[call.peer];
  else if (call.what == Collective::receive) n = ++received[call.peer];
  else n = ++number;
  LedgerEntry e;
  e.phase = Phase::collective;
  e.what = call.what;
  e.op = call.op;
  e.algorithm = call.algorithm;
  e.dtype = call.dtype;
  e.group_id = static_cast<std::uint32_t>(id ^ id >> 32);
  e.group_size = static_cast<std::uint8_t>(std::min<std::size_t>(world_ranks.size(), 255));
  e.peer = static_cast<std::int16_t>(call.peer);
  e.tag = tag_of(call, n);
  e.number = n;
  e.count = call.count;
  e.since = ticks();
  put(e.group, name);
  put(e.tensor, Label::current());
  return e;
}

void Group::Impl::one_rank(const Stream& s, const Call& call) const {
  if (call.in == call.out || !call.in || !call.out) return;
  const Spec spec{Shape{call.count}, call.dtype};
  copy(s, Tensor(call.out, spec, s.device()), View(call.in, spec, s.device()));
}

DeviceGroup& Group::Impl::connect(Device on) {
  if (device) return *device;
  HostExchange exchange{.rank = rank,
                        .size = static_cast<int>(world_ranks.size()),
                        .name = name,
                        .timeout = std::chrono::duration<double>(engine->patience().deadline).count(),
                        .all_gather = {}};
  exchange.all_gather = [this](std::span<const std::byte> mine, std::span<std::byte> all) {
    Call c;
    c.what = Collective::all_gather;
    c.in = mine.data();
    c.out = all.data();
    c.count = static_cast<std::int64_t>(mine.size());
    engine->run_now(*this, c, entry_of(c));
  };
  auto connected = connect_devices(exchange, on);
  std::lock_guard lock(device_mutex);
  device = std::move(connected);
  return *device;
}

void Group::Impl::on_device(const Stream& s, const Call& c) {
  require(device || !is_being_captured(s), "comm",
          "group {}: its GPUs are not connected yet, and cannot be connected during a capture: call the group's "
          "connect() on every rank before the capture",
          name);
  DeviceGroup& d = connect(s.device());
  const auto n = static_cast<std::int64_t>(world_ranks.size());
  const bool wide_in = c.what == Collective::reduce_scatter || c.what == Collective::all_to_all;
  const bool wide_out = c.what == Collective::all_gather || c.what == Collective::all_to_all;
  const View in(c.in, Spec{Shape{wide_in ? n * c.count : c.count}, c.dtype}, s.device());
  const Tensor out(c.out, Spec{Shape{wide_out ? n * c.count : c.count}, c.dtype}, s.device());
  switch (c.what) {
    case Collective::all_reduce: return d.all_reduce(s, out, c.op, c.algorithm, c.beside);
    case Collective::reduce_scatter: return d.reduce_scatter(s, out, in, c.op);
    case Collective::all_gather: return d.all_gather(s, out, in);
    case Collective::all_to_all: return d.all_to_all(s, out, in);
    case Collective::broadcast: return d.broadcast(s, out, c.peer);
    case Collective::send: return d.send(s, in, c.peer);
    case Collective::receive: return d.receive(s, out, c.peer);
    case Collective::barrier: return d.barrier(s);
    case Collective::split: break;
  }
}

Work Group::Impl::submit(const Stream& s, Call& call, bool now) {
  require(world_ranks.size() == 1 || engine->transport(), "comm",
          "group \"{}\" is for recording only: it has no processes to exchange data with", name);
  require(!closed, "comm", "the group {} has been closed", name);
  LiveCounters::add(counters.calls, 1);
  LiveCounters::add(counters.bytes, call.bytes());
  if (world_ranks.size() == 1) {
    one_rank(s, call);
    return {};
  }
  if (s.device().is_cuda()) {
    on_device(s, call);
    return {};
  }
  // On several hosts no algorithm uses a window, and some hosts may not have had the memory for one.
  if (!windows.empty() && local.size() == world_ranks.size() && !one_to_one(call.what)) {
    const std::int64_t n = static_cast<std::int64_t>(world_ranks.size()), part = call.bytes();
    const bool wide_in = call.what == Collective::reduce_scatter || call.what == Collective::all_to_all;
    const bool wide_out = call.what == Collective::all_gather || call.what == Collective::all_to_all;
    if (call.in) call.in_place = place(call.in, wide_in ? n * part : part);
    if (call.out) call.out_place = place(call.out, wide_out ? n * part : part);
    // A part in its place in the whole lies elsewhere on every rank, and the tags of ranks that call the same are equal.
    const auto mine = rank * part;
    if (call.what == Collective::reduce_scatter && call.out == call.in + mine) call.out_place = {};
    if (call.what == Collective::all_gather && call.in == call.out + mine) call.in_place = {};
  }
  const LedgerEntry entry = entry_of(call);
  // A message does not wait for earlier ones, which may be answers to it.
  if (!now) return Work(engine->run_later(*this, call, entry));
  if (one_to_one(call.what) && messages.queued.load() > 0) {
    Work(engine->run_later(*this, call, entry)).wait();
    return {};
  }
  engine->run_now(*this, call, entry);
  return {};
}

Group make_world(std::unique_ptr<Transport> transport, WorldOptions options) {
  const int rank = transport->rank();
  std::vector<int> all(static_cast<std::size_t>(transport->size()));
  std::iota(all.begin(), all.end(), 0);
  auto impl = std::make_shared<Group::Impl>(std::make_shared<Engine>(std::move(transport), std::move(options)), "world",
                                            0x68706364u, std::move(all), rank);
  impl->make_shared();
  return Group(std::move(impl));
}

}  // namespace hpcdl::comm
