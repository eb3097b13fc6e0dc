#include "hpcdl/ops/attention/cudnn_attention.h"

#if HPCDL_CUDNN

#include <array>
#include <limits>
#include <map>

#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/attention/cudnn_plan.h"

namespace hpcdl::cuda {
namespace {

constexpr auto kBytes = static_cast<std::int64_t>(kWorkspaceBytes);

using Key = std::array<std::int64_t, 31>;

Key key_of(const Attend& c, std::initializer_list<View> operands, std::int64_t kind) {
  Key key{kind << 8 | static_cast<std::int64_t>(c.q.dtype()) << 1 | (c.args.causal ? 1 : 0),
          c.q[0],
          c.q[1],
          c.k[1],
          c.args.heads,
          c.kv_heads(),
          c.width()};
  auto at = key.begin() + 7;
  for (const View& x : operands)
    *at++ = x.strides()[0], *at++ = x.strides()[1], *at++ = x.rank() == 4 ? x.strides()[2] : c.width();
  return key;
}

/// Never destroyed: captured work may hold the library's kernels.
template <class Make> const std::optional<cudnn::Plan>& remembered(const Stream& s, const Key& key, Make&& make) {
  static auto* const all = new std::map<int, std::map<Key, std::optional<cudnn::Plan>>>();
  auto& plans = (*all)[s.device().index];
  if (const auto known = plans.find(key); known != plans.end()) return known->second;
  return plans.emplace(key, make()).first->second;
}

const std::optional<cudnn::Plan>& plan(const Stream& s, const cudnn::Session& session, const Attend& c) {
  return remembered(s, key_of(c, {c.q, c.k, c.v, c.out}, 0),
                    [&] { return cudnn::plan_of(c, {.handle = session.handle()}, kBytes); });
}
const std::optional<cudnn::Plan>& plan(const Stream& s, const cudnn::Session& session, const AttendBackward& c,
                                       DqSums sums) {
  return remembered(s, key_of(c, {c.q, c.k, c.v, c.out, c.dout, c.dq, c.dk, c.dv}, 1 + static_cast<int>(sums)),
                    [&] { return cudnn::plan_of(c, sums, {.handle = session.handle()}, kBytes); });
}

/// What tensors are called, and where they are.
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

bool cudnn_fits(Stream& s, const Attend& c) {
  return cudnn::expressible(c) && plan(s, cudnn::Session(s), c).has_value();
}
bool cudnn_fits(Stream& s, const AttendBackward& c, DqSums sums) {
  return cudnn::expressible(c) && plan(s, cudnn::Session(s), c, sums).has_value();
}

void attend_cudnn(Stream& s, const Attend& c) {
  cudnn::Session session(s);
  const auto& planned = plan(s, session, c);
  require(planned.has_value(), "attention", "cuDNN has no way to compute this: cudnn_fits() says so first");
  const Places at(c);
  session.run(s, *planned, at.ids, at.places, workspace(s));
}

void attend_backward_cudnn(Stream& s, const AttendBackward& c, DqSums sums) {
  cudnn::Session session(s);
  const auto& planned = plan(s, session, c, sums);
  require(planned.has_value(), "attention", "cuDNN has no way to compute these gradients: cudnn_fits() says so first");
  Places at(c);
  at.add(cudnn::kDout, c.dout), at.add(cudnn::kDq, c.dq), at.add(cudnn::kDk, c.dk), at.add(cudnn::kDv, c.dv);
  at.add_one();
  auto* scratch = c.scratch.ptr<float>();  // dq and a number for each query
  if (sums == DqSums::atomic) at.add(cudnn::kDqSums, scratch);
  at.add(cudnn::kRowSums, scratch + c.q.size());
  session.run(s, *planned, at.ids, at.places, workspace(s));
}

}  // namespace hpcdl::cuda

#else

namespace hpcdl::cuda {

bool cudnn_fits(Stream&, const Attend&) { return false; }
bool cudnn_fits(Stream&, const AttendBackward&, DqSums) { return false; }
void attend_cudnn(Stream&, const Attend&) { fail("attention", "this build has no cuDNN"); }
void attend_backward_cudnn(Stream&, const AttendBackward&, DqSums) { fail("attention", "this build has no cuDNN"); }

}  // namespace hpcdl::cuda

#endif
