#if HPCDL_CUDNN

#include "hpcdl/ops/attention/cudnn_plan.h"

#include <cstdint>

// The pattern is that of NVIDIA's front end (github.com/NVIDIA/cudnn-frontend): cuDNN's fused attention engines accept
// a graph only if it matches as a whole, operation by operation. Tensors are (B, H, tokens, D), by their strides.

namespace hpcdl::cuda::cudnn {
namespace {

using Dims = std::vector<std::int64_t>;

/// A tensor of a graph.
struct Value {
  Descriptor tensor;
  Dims dims;
};

/// Strides between sequences, heads and tokens of x.
struct Apart {
  std::int64_t batch, head, token;
  Apart(const View& x, std::int64_t width)
      : batch(x.strides()[0]), head(x.rank() == 4 ? x.strides()[2] : width), token(x.strides()[1]) {}
};

Dims packed(const Dims& d) { return {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}; }

class Graph {
 public:
  std::vector<Descriptor> operations;

  Value in_memory(AttentionId id, cudnnDataType_t type, const Dims& dims, const Dims& strides) {
    return make(id, type, dims, strides, false, false);
  }
  Value number(AttentionId id, cudnnDataType_t type) { return make(id, type, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true); }
  /// An intermediate tensor between two operations, without memory.
  Value between(cudnnDataType_t type, const Dims& dims, const Dims& strides) {
    return make(next_++, type, dims, strides, true, false);
  }
  Value between(cudnnDataType_t type, const Dims& dims) { return between(type, dims, packed(dims)); }

  void product(const Value& a, const Value& b, const Value& c) {
    Descriptor kind(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    kind.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    kind.finalize();
    Descriptor op(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    op.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.tensor), op.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.tensor),
        op.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.tensor);
    op.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    add(std::move(op));
  }
  void reduce(cudnnReduceTensorOp_t how, const Value& x, const Value& y) {
    Descriptor kind(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    kind.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    kind.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, how);
    kind.finalize();
    Descriptor op(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    op.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.tensor), op.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.tensor);
    add(std::move(op));
  }
  /// y has x's elements in another order, given by its strides.
  void reshape(const Value& x, const Value& y) {
    Descriptor op(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    op.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.tensor), op.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.tensor);
    add(std::move(op));
  }
  /// y = mode(x), mode(x, b) or, for a selection, mode(x, b, by t).
  void pointwise(cudnnPointwiseMode_t mode, const Value& y, const Value& x, const Value* b = nullptr,
                 const Value* t = nullptr, cudnnDataType_t compute = CUDNN_DATA_FLOAT,
                 std::optional<std::int64_t> axis = {}) {
    operations.push_back(
        cudnn::pointwise(mode, y.tensor, x.tensor, b ? &b->tensor : nullptr, t ? &t->tensor : nullptr, compute, axis));
  }
  /// The same into an intermediate f32 tensor with x's dims.
  Value after(cudnnPointwiseMode_t mode, const Value& x, const Value* b = nullptr) {
    Value y = between(CUDNN_DATA_FLOAT, x.dims);
    pointwise(mode, y, x, b);
    return y;
  }

 private:
  Value make(std::int64_t id, cudnnDataType_t type, const Dims& dims, const Dims& strides, bool is_virtual,
             bool by_value) {
    Descriptor t(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
    t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::int64_t{16});
    t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
    t.set(CUDNN_ATTR_TENSOR_STRIDES, strides);
    t.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
    t.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
    t.finalize();
    return {std::move(t), dims};
  }
  void add(Descriptor op) {
    op.finalize();
    operations.push_back(std::move(op));
  }

  std::int64_t next_ = kBetween;
};

/// The tensors of a call in the form that both graphs need.
class Call {
 public:
  Call(Graph& graph, const Attend& c)
      : g(graph), c_(c), batch_(c.q[0]), heads_(c.args.heads), queries_(c.q[1]), keys_(c.k[1]) {}

  Graph& g;
  cudnnDataType_t type() const { return type_of(c_.q.dtype()); }
  /// A tensor of `heads` heads with its actual strides. Transposed: (B, H, D, tokens).
  Value operand(AttentionId id, const View& x, std::int64_t heads, bool transposed = false) {
    const Apart a(x, c_.width());
    if (transposed) return g.in_memory(id, type(), {x[0], heads, c_.width(), x[1]}, {a.batch, a.head, 1, a.token});
    return g.in_memory(id, type(), {x[0], heads, x[1], c_.width()}, {a.batch, a.head, a.token, 1});
  }
  /// One f32 number per query.
  Value rows(AttentionId id) { return g.in_memory(id, CUDNN_DATA_FLOAT, row_dims(), packed(row_dims())); }
  Dims row_dims() const { return {batch_, heads_, queries_, 1}; }
  Dims pair_dims() const { return {batch_, heads_, queries_, keys_}; }

  /// scale * q k^T
  Value scores(const Value& q, const Value& k, const Value& scale) {
    const Value products = g.between(CUDNN_DATA_FLOAT, pair_dims());
    g.product(q, k, products);
    return g.after(CUDNN_POINTWISE_MUL, products, &scale);
  }
  /// Minus infinity where query t does not see key j: t + keys - queries < j.
  Value masked(const Value& x) {
    Value row = g.between(CUDNN_DATA_INT32, pair_dims());
    g.pointwise(CUDNN_POINTWISE_GEN_INDEX, row, x, nullptr, nullptr, CUDNN_DATA_FLOAT, 2);
    const Value column = g.between(CUDNN_DATA_INT32, pair_dims());
    g.pointwise(CUDNN_POINTWISE_GEN_INDEX, column, x, nullptr, nullptr, CUDNN_DATA_FLOAT, 3);
    if (keys_ != queries_) {
      const auto shifted = [&](cudnnPointwiseMode_t mode, AttentionId by) {
        Value y = g.between(CUDNN_DATA_INT32, pair_dims());
        const Value n = g.number(by, CUDNN_DATA_INT32);
        g.pointwise(mode, y, row, &n, nullptr, CUDNN_DATA_INT32);
        row = std::move(y);
      };
      shifted(CUDNN_POINTWISE_ADD, kKeys), shifted(CUDNN_POINTWISE_SUB, kQueries);
    }
    const Value seen = g.between(CUDNN_DATA_BOOLEAN, pair_dims());
    g.pointwise(CUDNN_POINTWISE_CMP_GE, seen, row, &column, nullptr, CUDNN_DATA_BOOLEAN);
    const Value lowest = g.number(kMasked, CUDNN_DATA_FLOAT);
    Value y = g.between(CUDNN_DATA_FLOAT, pair_dims());
    g.pointwise(CUDNN_POINTWISE_BINARY_SELECT, y, x, &lowest, &seen);
    return y;
  }

 private:
  const Attend& c_;
  std::int64_t batch_, heads_, queries_, keys_;
};

std::vector<Descriptor> operations(const Attend& c) {
  Graph g;
  Call call(g, c);
  const Value q = call.operand(kQ, c.q, c.args.heads), k = call.operand(kK, c.k, c.kv_heads(), true),
              v = call.operand(kV, c.v, c.kv_heads());
  const Value scale = g.number(kScale, CUDNN_DATA_FLOAT);
  Value s = call.scores(q, k, scale);
  if (c.args.causal) s = call.masked(s);
  const Value top = g.between(CUDNN_DATA_FLOAT, call.row_dims()), sum = g.between(CUDNN_DATA_FLOAT, call.row_dims());
  g.reduce(CUDNN_REDUCE_TENSOR_MAX, s, top);
  const Value e = g.after(CUDNN_POINTWISE_EXP, g.after(CUDNN_POINTWISE_SUB, s, &top));
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  const Value log = g.after(CUDNN_POINTWISE_LOG, sum);
  g.pointwise(CUDNN_POINTWISE_ADD, call.rows(kLse), top, &log);
  const Value p = g.between(call.type(), call.pair_dims());
  g.pointwise(CUDNN_POINTWISE_DIV, p, e, &sum);
  g.product(p, v, call.operand(kOutput, c.out, c.args.heads));
  return std::move(g.operations);
}

/// Gradients of keys or values: p^T or ds^T times the tensor of the queries' side, summed over the query heads of a key
/// head.
void keys_gradient(Call& call, const Value& pairs, const Value& queries_side, const Value& result, std::int64_t heads) {
  Graph& g = call.g;
  const Dims d = call.pair_dims();
  const Value turned = g.between(call.type(), {d[0], d[1], d[3], d[2]}, {d[1] * d[2] * d[3], d[2] * d[3], 1, d[3]});
  g.reshape(pairs, turned);
  if (heads == d[1]) return g.product(turned, queries_side, result);
  const Value each = g.between(call.type(), {d[0], d[1], d[3], queries_side.dims[3]});
  g.product(turned, queries_side, each);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, each, result);
}

std::vector<Descriptor> operations(const AttendBackward& c, DqSums sums) {
  Graph g;
  Call call(g, c);
  const int heads = c.args.heads, kv_heads = c.kv_heads();
  const Value q = call.operand(kQ, c.q, heads), k = call.operand(kK, c.k, kv_heads, true),
              v = call.operand(kV, c.v, kv_heads, true);
  const Value out = call.operand(kOutput, c.out, heads), dout = call.operand(kDout, c.dout, heads),
              lse = call.rows(kLse);
  const Value scale = g.number(kScale, CUDNN_DATA_FLOAT), one = g.number(kOne, CUDNN_DATA_FLOAT);

  const Value row_sums = call.rows(kRowSums), each = g.between(CUDNN_DATA_FLOAT, call.row_dims());
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, g.after(CUDNN_POINTWISE_MUL, dout, &out), each);
  g.pointwise(CUDNN_POINTWISE_MUL, row_sums, each, &one);

  Value s = g.after(CUDNN_POINTWISE_SUB, call.scores(q, k, scale), &lse);
  if (c.args.causal) s = call.masked(s);
  const Value p = g.after(CUDNN_POINTWISE_EXP, s);
  keys_gradient(call, p, dout, call.operand(kDv, c.dv, kv_heads), kv_heads);

  const Value dp = g.between(CUDNN_DATA_FLOAT, call.pair_dims());
  g.product(dout, v, dp);
  const Value ds = g.after(CUDNN_POINTWISE_MUL,
                           g.after(CUDNN_POINTWISE_MUL, g.after(CUDNN_POINTWISE_SUB, dp, &row_sums), &p), &scale);
  keys_gradient(call, ds, q, call.operand(kDk, c.dk, kv_heads), kv_heads);

  const Apart a(c.k, c.width());
  const Value k_again = g.between(call.type(), {c.k[0], kv_heads, c.k[1], c.width()}, {a.batch, a.head, a.token, 1});
  g.reshape(k, k_again);
  const Value dq = call.operand(kDq, c.dq, heads);
  if (sums == DqSums::in_order) {
    g.product(ds, k_again, dq);
  } else {
    const Value added = g.in_memory(kDqSums, CUDNN_DATA_FLOAT, q.dims, packed(q.dims));
    g.product(ds, k_again, added);
    g.pointwise(CUDNN_POINTWISE_IDENTITY, dq, added);
  }
  return std::move(g.operations);
}

/// False for engines with a harmful numerical note: down-converted operands, reduced-precision sums, or results that
/// differ between runs, unless `sums` requested those.
bool keeps_promises(std::span<const cudnnBackendNumericalNote_t> notes, DqSums sums) {
  for (const auto note : notes)
    if (note != CUDNN_NUMERICAL_NOTE_TENSOR_CORE && note != CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP &&
        !(note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC && sums == DqSums::atomic))
      return false;
  return true;
}

/// A 16-bit operand whose rows begin at multiples of 16 bytes.
bool fits(const View& x, const Attend& c) {
  const Apart a(x, c.width());
  return x.dtype() == c.q.dtype() && reinterpret_cast<std::uintptr_t>(x.data()) % 16 == 0 && a.batch % 8 == 0 &&
         a.head % 8 == 0 && a.token % 8 == 0;
}

}  // namespace

bool expressible(const Attend& c) {
  // Earlier versions have faults according to the front end's notes; for heads wider than 128, earlier versions were
  // not tested here.
  const std::size_t first = c.width() > 128 ? 91600 : 91002;
  return c.lse && reinterpret_cast<std::uintptr_t>(c.lse.data()) % 16 == 0 && c.q.dtype() != DType::f32 &&
         c.width() % 8 == 0 && c.width() <= 256 && fits(c.q, c) && fits(c.k, c) && fits(c.v, c) && fits(c.out, c) &&
         Library::get().whole && Library::get().version() >= first;
}

bool expressible(const AttendBackward& c) {
  constexpr std::size_t kFirstOfAnyLength = 91600;
  const auto written = [&](const Grad& x) { return x && !x.accumulate() && fits(x, c); };
  return expressible(static_cast<const Attend&>(c)) && fits(c.dout, c) && written(c.dq) && written(c.dk) &&
         written(c.dv) && c.q[1] > 1 && (c.k[1] % 128 == 0 || Library::get().version() >= kFirstOfAnyLength);
}

std::optional<Plan> plan_of(const Attend& c, const Target& target, std::int64_t most) {
  return plan_of(operations(c), target, most, [](std::span<const cudnnBackendNumericalNote_t> notes) {
    return keeps_promises(notes, DqSums::in_order);
  });
}

std::optional<Plan> plan_of(const AttendBackward& c, DqSums sums, const Target& target, std::int64_t most) {
  return plan_of(operations(c, sums), target, most,
                 [&](std::span<const cudnnBackendNumericalNote_t> notes) { return keeps_promises(notes, sums); });
}

}  // namespace hpcdl::cuda::cudnn

#endif
