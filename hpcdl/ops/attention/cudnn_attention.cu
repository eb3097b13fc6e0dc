#include "hpcdl/ops/attention/cudnn_attention.h"

#if HPCDL_CUDNN

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>

#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/attention/cudnn_plan.h"
#include "hpcdl/ops/attention/far_rows.cuh"

namespace hpcdl::cuda {
namespace {

constexpr auto kBytes = static_cast<std::int64_t>(kWorkspaceBytes);

using Key = std::array<std::int64_t, 32>;

/// `room`: bytes for work in progress.
Key key_of(const Attend& c, std::initializer_list<View> operands, std::int64_t kind, std::int64_t room) {
  Key key{kind << 8 | static_cast<std::int64_t>(c.q.dtype()) << 1 | (c.args.causal ? 1 : 0),
          c.q[0],
          c.q[1],
          c.k[1],
          c.args.heads,
          c.kv_heads(),
          c.width(),
          room};
  auto at = key.begin() + 8;
  for (const View& x : operands)
    *at++ = x.strides()[0], *at++ = x.strides()[1], *at++ = x.rank() == 4 ? x.strides()[2] : c.width();
  return key;
}

/// The plan for one part of a call and the number of parts: sequences, and key heads of one sequence.
struct Planned {
  cudnn::Plan plan;
  std::int64_t sequences = 1;
  int heads = 1;
};

/// Never destroyed, since captured work may refer to the library's kernels.
template <class Make> const std::optional<Planned>& remembered(const Stream& s, const Key& key, Make&& make) {
  static auto* const all = new std::map<int, std::map<Key, std::optional<Planned>>>();
  auto& plans = (*all)[s.device().index];
  if (const auto known = plans.find(key); known != plans.end()) return known->second;
  return plans.emplace(key, make()).first->second;
}

/// The library has no plan without the logarithms of sums for heads this wide: where no caller needs them, they go to
/// the end of the workspace.
std::int64_t lse_bytes(const Attend& c) { return (c.q[0] * c.args.heads * c.q[1] * 4 + 255) / 256 * 256; }
Attend with_lse(Stream& s, const Attend& c) {
  if (c.lse || lse_bytes(c) > kBytes) return c;
  Attend with = c;
  with.lse = View(static_cast<const std::byte*>(workspace(s)) + kBytes - lse_bytes(c),
                  {{c.q[0], c.args.heads, c.q[1]}, DType::f32}, s.device());
  return with;
}

const std::optional<Planned>& plan(const Stream& s, const cudnn::Session& session, const Attend& c) {
  const std::int64_t room = kBytes - lse_bytes(c);
  return remembered(s, key_of(c, {c.q, c.k, c.v, c.out}, 0, room), [&]() -> std::optional<Planned> {
    auto p = cudnn::plan_of(c, {.handle = session.handle()}, room);
    if (!p) return std::nullopt;
    return Planned{std::move(*p)};
  });
}

/// Sums per query and the statistics of rows, at the end of the scratch; lse is aligned to 16 bytes.
std::int64_t row_floats(const AttendBackward& c) { return (c.lse.size() + 3) / 4 * 4; }
std::int64_t before_rows(const AttendBackward& c) { return (c.scratch.size() - 4 * row_floats(c) - 1) / 4 * 4; }

/// Where cuDNN may keep ds: the workspace, or the rest of the scratch.
struct Room {
  void* data = nullptr;  // null: the workspace
  std::int64_t bytes = kBytes;
};
Room room_of(const AttendBackward& c, DqSums sums) {
  const std::int64_t bytes = before_rows(c) * 4;
  if (sums == DqSums::atomic || bytes <= kBytes) return {};
  return {const_cast<float*>(c.scratch.ptr<float>()), bytes};
}

/// Uses as few parts as the room allows.
const std::optional<Planned>& plan(const Stream& s, const cudnn::Session& session, const AttendBackward& c,
                                   DqSums sums) {
  const std::int64_t room = room_of(c, sums).bytes;
  const auto make = [&]() -> std::optional<Planned> {
    const std::int64_t batch = c.q[0];
    const auto cut = [&](std::int64_t sequences, int heads) -> std::optional<Planned> {
      const auto part = AttentionPart{0, batch / sequences, 0, c.kv_heads() / heads}.of(c);
      if (sequences * heads > 1 && part.lse.size() % 4 != 0) return std::nullopt;  // lse at a multiple of 16 bytes
      // ds in whole tiles; everything else is small.
      const std::int64_t pairs = ((c.q[1] + 63) / 64 * 64) * ((c.k[1] + 63) / 64 * 64);
      if (sums == DqSums::in_order && part.q[0] * part.args.heads * pairs * 2 > room) return std::nullopt;
      auto p = cudnn::plan_of(part, sums, {.handle = session.handle()}, room);
      if (!p) return std::nullopt;
      return Planned{std::move(*p), sequences, heads};
    };
    const bool can_be_cut = sums == DqSums::in_order;
    for (std::int64_t n = 1; n <= (can_be_cut ? batch : 1); ++n)
      if (batch % n == 0)
        if (auto found = cut(n, 1)) return found;
    for (int n = 2; n <= (can_be_cut ? c.kv_heads() : 1); ++n)
      if (c.kv_heads() % n == 0)
        if (auto found = cut(batch, n)) return found;
    return std::nullopt;
  };
  return remembered(s, key_of(c, {c.q, c.k, c.v, c.out, c.dout, c.dq, c.dk, c.dv}, 1 + static_cast<int>(sums), room),
                    make);
}

/// The tensors' ids and addresses.
class Places {
 public:
  explicit Places(const Attend& c)
      : scale_(c.scale()), queries_(static_cast<int>(c.q[1])), keys_(static_cast<int>(c.k[1])) {
    add(cudnn::kQ, c.q), add(cudnn::kK, c.k), add(cudnn::kV, c.v), add(cudnn::kOutput, c.out), add(cudnn::kLse, c.lse);
    add(cudnn::kScale, &scale_);
    if (c.args.causal) add(cudnn::kMasked, &masked_);
    if (c.args.causal && queries_ != keys_) add(cudnn::kQueries, &queries_), add(cudnn::kKeys, &keys_);
  }
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;
  void add(cudnn::AttentionId id, const View& x) { add(id, x.data()); }
  void add(cudnn::AttentionId id, const void* data) { ids.push_back(id), places.push_back(const_cast<void*>(data)); }
  void add_one() { add(cudnn::kOne, &one_); }

  std::vector<std::int64_t> ids;
  std::vector<void*> places;

 private:
  float scale_, one_ = 1, masked_ = -std::numeric_limits<float>::infinity();
  int queries_, keys_;
};

}  // namespace

bool cudnn_fits(Stream& s, const Attend& given) {
  if (!given.plain_scores() || given.documents) return false;
  const Attend c = with_lse(s, given);
  return cudnn::expressible(c) && plan(s, cudnn::Session(s), c).has_value();
}
bool cudnn_fills_a_gpu(const Stream& s, const AttendBackward& c) {
  const std::int64_t pairs = c.q[1] * c.k[1], heads = room_of(c, DqSums::in_order).bytes / (2 * pairs);
  return std::min<std::int64_t>(heads, c.q[0] * c.args.heads) * ((c.k[1] + 127) / 128) * 5 >= 2 * multiprocessors(s);
}
bool cudnn_fits(Stream& s, const AttendBackward& c, DqSums sums) {
  if (!c.plain_scores() || c.documents) return false;
  return cudnn::expressible(c) && plan(s, cudnn::Session(s), c, sums).has_value();
}

void attend_cudnn(Stream& s, const Attend& given) {
  const Attend c = with_lse(s, given);
  cudnn::Session session(s);
  const auto& planned = plan(s, session, c);
  require(planned.has_value(), "attention", "cuDNN has no way to compute this: cudnn_fits() says so first");
  const Places at(c);
  session.run(s, planned->plan, at.ids, at.places, workspace(s));
}

/// The library yields nothing for rows whose lse is +inf: far rows are added afterwards.
void attend_backward_cudnn(Stream& s, const AttendBackward& given, DqSums sums) {
  AttendBackward c = given;
  auto* const scratch = given.scratch.ptr<float>();
  const std::int64_t rows = row_floats(c);
  float* const row_sums = scratch + before_rows(c);
  const RowStatistics statistics{.tops = row_sums + 2 * rows,
                                 .logs = row_sums + 3 * rows,
                                 .near_lse = row_sums + rows,
                                 .any_far = reinterpret_cast<int*>(row_sums + 4 * rows)};
  find_statistics(s, given, statistics);
  c.lse = View(statistics.near_lse, c.lse.spec(), c.lse.device());
  cudnn::Session session(s);
  const auto& planned = plan(s, session, c, sums);
  require(planned.has_value(), "attention", "cuDNN has no way to compute these gradients: cudnn_fits() says so first");
  const Room room = room_of(c, sums);
  const std::int64_t count = c.q[0] / planned->sequences;
  const int heads = c.kv_heads() / planned->heads;
  for (std::int64_t sequence = 0; sequence < c.q[0]; sequence += count)
    for (int head = 0; head < c.kv_heads(); head += heads) {
      const auto part = AttentionPart{sequence, count, head, heads}.of(c);
      Places at(part);
      at.add(cudnn::kDout, part.dout), at.add(cudnn::kDq, part.dq), at.add(cudnn::kDk, part.dk),
          at.add(cudnn::kDv, part.dv);
      at.add_one();
      if (sums == DqSums::atomic) at.add(cudnn::kDqSums, scratch);
      at.add(cudnn::kRowSums, row_sums);
      session.run(s, planned->plan, at.ids, at.places, room.data ? room.data : workspace(s));
    }
  add_far_gradients(s, given, statistics);
}

}  // namespace hpcdl::cuda

#else

namespace hpcdl::cuda {

bool cudnn_fits(Stream&, const Attend&) { return false; }
bool cudnn_fits(Stream&, const AttendBackward&, DqSums) { return false; }
bool cudnn_fills_a_gpu(const Stream&, const AttendBackward&) { return false; }
void attend_cudnn(Stream&, const Attend&) { fail("attention", "this build has no cuDNN"); }
void attend_backward_cudnn(Stream&, const AttendBackward&, DqSums) { fail("attention", "this build has no cuDNN"); }

}  // namespace hpcdl::cuda

#endif
