#pragma once
// Attention backward on Hopper's tensor cores (.cu files): how the work is divided, its shared memory layout, which
// warps load operands and which sum dq. The computation itself: backward_consumer.h.

#include "hpcdl/cuda/tile/arena.cuh"
#include "hpcdl/cuda/tile/raster.cuh"
#include "hpcdl/cuda/tile/roles.cuh"
#include "hpcdl/ops/attention/heads.cuh"
#include "hpcdl/stream.h"

namespace hpcdl::cuda {

struct BackwardProblem {
  Heads dq, dk, dv;
  // (B * H, tiles of queries, kStatistics): logs of far_rows.h, +inf after T; then 0 for a tile without far rows, or 1
  // + its number among all.
  const float* lse = nullptr;
  const float* delta = nullptr;  // (B * H, padded T) of sum(dO out)
  const float* tops = nullptr;   // (B * H, padded T), of far_rows.h
  float* sums = nullptr;         // partial dq, in the order of the accumulator registers
  unsigned* turns = nullptr;     // (B * H, tiles of queries, 2 warpgroups): the turn that comes next
  unsigned* ticket = nullptr;    // pieces handed out so far
  int batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, width = 0;
  bool causal = false;
  float scale = 0;
  bool ascending = false;  // pieces in the order of their keys, queries from the last
  int section = 1;         // key/value heads whose pieces are interleaved
  // Query heads that share keys may be several works, whose dk and dv are summed in order: f32, dk, then dv, (parts, B,
  // keys, key/value heads, width).
  int parts = 1;
  float* shares = nullptr;
  const std::int32_t* ends = nullptr;  // kDocuments: (B, T), of the document of each token

  __device__ std::int64_t share(int part, int sequence, int token, int head) const {
    return ((static_cast<std::int64_t>(part * batch + sequence) * keys + token) * kv_heads + head) * width;
  }
};

/// kParts: the query heads that share keys are several works (BackwardProblem::parts). kDocuments: a query sees keys of its
/// document only, under a causal mask.
template <int kWidth_, int kQueries_, int kQueryStages_, int kDoutStages_, bool kParts_ = false,
          bool kDocuments_ = false>
struct BackwardShape {
  static constexpr bool kParts = kParts_, kDocuments = kDocuments_;
  static constexpr int kWidth = kWidth_, kQueries = kQueries_, kQueryStages = kQueryStages_, kDoutStages = kDoutStages_,
                       kStages = kQueryStages + kDoutStages, kKeys = 128, kThreads = 384, kHalves = kWidth / 64;
  static constexpr bool kPipelined = kWidth == 128;        // backward_pipelined.h
  static constexpr int kKeyStages = kWidth == 64 ? 2 : 1;  // stages of keys and values that fit shared memory
  static constexpr int kQueryBytes = kQueries * kWidth * 2, kKeyBytes = kKeys * kWidth * 2,
                       kScoreBytes = kQueries * kKeys * 2;
  static constexpr int kStatistics = kQueries + 4;
  static constexpr int kSumBytes = kQueries * kWidth * 2;  // bytes of dq per warpgroup, f32
  static constexpr int kSums = kQueries * kWidth / 256;    // elements of dq per thread

  static __host__ __device__ int tiles(int queries) { return (queries + kQueries - 1) / kQueries; }
  static __host__ __device__ int pieces(int keys) { return (keys + kKeys - 1) / kKeys; }
};

/// Tiles of queries [first, after) see keys of this piece.
template <class Shape> struct BackwardPiece {
  int kv_head, sequence, piece, first, after, offset, part;
  // kDocuments: the ends of the documents of the first of these keys and of the key before it; 0: there is none.
  int end = 0, end_before = 0;

  static __device__ BackwardPiece find(const BackwardProblem& p, int work) {
    const int pieces = Shape::pieces(p.keys), each = p.kv_heads * parts_of(p);
    const auto [head, number] = InGroups::find(work, p.batch * each, pieces, p.section);
    BackwardPiece w{head % each / parts_of(p),
                    head / each,
                    p.ascending ? number : pieces - 1 - number,
                    0,
                    Shape::tiles(p.queries),
                    p.keys - p.queries,
                    head % parts_of(p)};
    if (p.causal && w.piece * Shape::kKeys > w.offset) w.first = (w.piece * Shape::kKeys - w.offset) / Shape::kQueries;
    if constexpr (Shape::kDocuments) {
      const int key = w.piece * Shape::kKeys;
      w.after = Shape::tiles(w.document_end(p, key + Shape::kKeys - 1));
      w.end = w.document_end(p, key), w.end_before = key > 0 ? w.document_end(p, key - 1) : 0;
    }
    return w;
  }
  /// kDocuments: of the document of a key, or of the last one.
  __device__ int document_end(const BackwardProblem& p, int key) const {
    return p.ends[sequence * p.keys + ::min(key, p.keys - 1)];
  }
  /// The last piece of keys that a tile of queries sees.
  __device__ int last(const BackwardProblem& p, int tile) const {
    const int end = Shape::pieces(p.keys) - 1,
              seen = p.causal ? (tile * Shape::kQueries + Shape::kQueries - 1 + offset) / Shape::kKeys : end;
    return seen < end ? seen : end;
  }
  /// Whether a tile sees no earlier keys than those of this piece.
  __device__ bool is_first(int tile) const {
    return Shape::kDocuments ? tile * Shape::kQueries >= end_before : piece == 0;
  }
  /// Step i of this piece.
  __device__ int tile(const BackwardProblem& p, int i) const {
    const int t = i / sharing(p);
    return p.ascending ? after - 1 - t : first + t;
  }
  static __device__ int parts_of(const BackwardProblem& p) { return Shape::kParts ? p.parts : 1; }
  /// The query heads [first_head, first_head + sharing) that share the keys belong to this work.
  __device__ int first_head(const BackwardProblem& p) const {
    const int group = p.heads / p.kv_heads;
    return kv_head * group + (Shape::kParts ? part * group / p.parts : 0);
  }
  __device__ int sharing(const BackwardProblem& p) const {
    const int group = p.heads / p.kv_heads;
    return Shape::kParts ? (part + 1) * group / p.parts - part * group / p.parts : group;
  }
  __device__ int head(const BackwardProblem& p, int i) const { return first_head(p) + i % sharing(p); }
  /// The turn of this piece in the sum of a tile; the first turn is 0, or in ascending order the first piece of the tile.
  __device__ int turn(const BackwardProblem& p, int tile) const { return p.ascending ? piece : last(p, tile) - piece; }
  /// Whether it is the first, and the last.
  __device__ bool opens(const BackwardProblem& p, int tile, int turn) const {
    return Shape::kDocuments && p.ascending ? is_first(tile) : turn == 0;
  }
  __device__ bool closes(const BackwardProblem& p, int tile, int turn) const {
    return Shape::kDocuments && !p.ascending ? is_first(tile) : turn == last(p, tile);
  }
  /// The index of a warpgroup's part of a tile among all.
  __device__ std::int64_t place(const BackwardProblem& p, int head, int tile, int group) const {
    return ((static_cast<std::int64_t>(sequence) * p.heads + head) * Shape::tiles(p.queries) + tile) * 2 + group;
  }
  /// Whether a tile does not see all keys of this piece.
  __device__ bool masked(const BackwardProblem& p, int tile) const {
    const int last_key = piece * Shape::kKeys + Shape::kKeys - 1;
    if (last_key >= p.keys || (p.causal && last_key > tile * Shape::kQueries + offset)) return true;
    return Shape::kDocuments && tile * Shape::kQueries + Shape::kQueries > end;
  }
  __device__ int steps(const BackwardProblem& p) const { return (after - first) * sharing(p); }
};

/// Every consumer thread releases a stage separately, for what it has read, after the fence of a put_scores() that
/// follows its loads. One lane per warp or one thread per warpgroup would suffice but is no faster (H200; 1 % slower
/// with heads of 64), and racecheck reports the loads of the other threads as races with the next copy.
template <int kStages, int kAdders = 0>
using BackwardStages = Stages<Channel<kStages, Threads<256 + kAdders>, Reads::registers>>;
template <class Shape>
struct BackwardMemory
    : Arena<Room<char, 2 * Shape::kKeyStages * Shape::kKeyBytes, 1024>,
            Room<char, Shape::kStages * Shape::kQueryBytes, 1024>, Room<char, 2 * Shape::kScoreBytes, 1024>,
            Room<char, 2 * Shape::kSumBytes, 1024>, Room<float, Shape::kQueryStages * Shape::kStatistics, 16>,
            Room<float, Shape::kDoutStages * Shape::kQueries, 16>, BackwardStages<Shape::kKeyStages, 2>,
            BackwardStages<Shape::kQueryStages>, BackwardStages<Shape::kDoutStages>,
            Stages<Channel<2, Threads<1>, Reads::tensor_cores, 1, Warps<4>>>, Room<int, Shape::kKeyStages>> {
  __device__ char* key(int s) const { return this->template part<0>() + s * Shape::kKeyBytes; }
  __device__ char* value(int s) const { return key(Shape::kKeyStages + s); }
  __device__ char* query(int s) const { return this->template part<1>() + s * Shape::kQueryBytes; }
  __device__ char* dout(int s) const { return query(Shape::kQueryStages + s); }
  __device__ char* score(int s) const { return this->template part<2>() + s * Shape::kScoreBytes; }
  __device__ char* sums(int group) const { return this->template part<3>() + group * Shape::kSumBytes; }
  __device__ float* lse(int s) const { return this->template part<4>() + s * Shape::kStatistics; }
  __device__ float* delta(int s) const { return this->template part<5>() + s * Shape::kQueries; }
  __device__ auto keys() const { return this->template part<6>(); }
  __device__ auto queries() const { return this->template part<7>(); }
  __device__ auto douts() const { return this->template part<8>(); }
  __device__ auto all_sums() const { return this->template part<9>(); }  // a stage for each warpgroup
  __device__ int* work(int s) const { return this->template part<10>() + s; }
};

#if HPCDL_SM90A

/// Called by one thread.
template <class Shape>
__device__ void backward_produce(const BackwardMemory<Shape>& m, const TensorMap& q, const TensorMap& k,
                                 const TensorMap& v, const TensorMap& dout, const BackwardProblem& p) {
  auto ks = m.keys().to_put();
  auto qs = m.queries().to_put();
  auto os = m.douts().to_put();
  const int works = Shape::pieces(p.keys) * p.kv_heads * BackwardPiece<Shape>::parts_of(p) * p.batch,
            tiles = Shape::tiles(p.queries);
  const auto load = [](char* to, int rows, const TensorMap& map, Barrier* full, int head, int row, int sequence) {
    for (int i = 0; i < Shape::kHalves; ++i) tma_load(to + i * rows * 128, map, full, 64 * i, head, row, sequence);
  };
  while (true) {
    const int work = static_cast<int>(atomicAdd(p.ticket, 1u));
    m.keys().wait_empty(ks);
    *m.work(ks.stage) = work;
    if (work >= works) return m.keys().filled(ks);
    const auto w = BackwardPiece<Shape>::find(p, work);
    Barrier* const full = m.keys().expect(ks, 2 * Shape::kKeyBytes);
    load(m.key(ks.stage), Shape::kKeys, k, full, w.kv_head, w.piece * Shape::kKeys, w.sequence);
    load(m.value(ks.stage), Shape::kKeys, v, full, w.kv_head, w.piece * Shape::kKeys, w.sequence);
    ks.next();
    for (int i = 0; i < w.steps(p); ++i) {
      const int h = w.head(p, i), tile = w.tile(p, i);
      const std::int64_t number = (static_cast<std::int64_t>(w.sequence) * p.heads + h) * tiles + tile;
      const auto bring = [&](char* to, float* statistic, const TensorMap& map, const float* from, int count,
                             const auto& channel, const auto& at) {
        Barrier* const full = channel.put(at, static_cast<unsigned>(Shape::kQueryBytes + count * 4));
        load(to, Shape::kQueries, map, full, h, tile * Shape::kQueries, w.sequence);
        bulk_load(statistic, from + number * count, static_cast<unsigned>(count * 4), full);
      };
      bring(m.query(qs.stage), m.lse(qs.stage), q, p.lse, Shape::kStatistics, m.queries(), qs);
      bring(m.dout(os.stage), m.delta(os.stage), dout, p.delta, Shape::kQueries, m.douts(), os);
      qs.next();
      os.next();
    }
  }
}

/// The turn that comes next in a warpgroup's part of a tile.
__device__ inline unsigned turn_now(const unsigned* turn) {
  unsigned now;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  return now;
}

/// Called by one thread per consumer warpgroup: adds the stored dq when its turn has come, so that the consumer need
/// not wait.
template <class Shape>
__device__ void backward_add(const BackwardMemory<Shape>& m, const BackwardProblem& p, int group) {
  Ring<Shape::kKeyStages> ks;
  Ring<1> full;
  const int works = Shape::pieces(p.keys) * p.kv_heads * BackwardPiece<Shape>::parts_of(p) * p.batch;
  while (true) {
    m.keys().get(ks);
    const int work = *m.work(ks.stage);
    if (work >= works) return;
    m.keys().fenced_done(ks.stage);  // needs no fence for a number that a thread writes
    ks.next();
    const auto w = BackwardPiece<Shape>::find(p, work);
    for (int i = 0; i < w.steps(p); ++i) {
      const int tile = w.tile(p, i), turn = w.turn(p, tile);
      if (w.closes(p, tile, turn)) continue;
      const std::int64_t at = w.place(p, w.head(p, i), tile, group);
      char* sums = reinterpret_cast<char*>(p.sums) + at * Shape::kSumBytes;
      m.all_sums().get(Slot{group, full.parity});
      full.next();
      if (w.opens(p, tile, turn)) {
        bulk_store(sums, m.sums(group), Shape::kSumBytes);
      } else {
        while (turn_now(p.turns + at) != static_cast<unsigned>(turn)) {}
        asm volatile("fence.proxy.async.global;" ::: "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(sums),
                     "r"(shared_address(m.sums(group))), "r"(Shape::kSumBytes)
                     : "memory");
      }
      tma_commit();
      tma_wait_read<0>();
      m.all_sums().done(group);
      tma_wait<0>();
      // The release that follows is all that the next turn needs: a separate fence took up to a tenth of the kernel.
      asm volatile("fence.proxy.async.global;" ::: "memory");
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p.turns + at), "r"(turn + 1) : "memory");
    }
  }
}

#endif

}  // namespace hpcdl::cuda
