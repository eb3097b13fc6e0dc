#include "tools/compare/peers.h"

#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matmul/matmul.h"

namespace hpcdl::lab::compare {

namespace {

template <class Args> const Args& args_of(const Program& p, const Record& r) {
  return *reinterpret_cast<const Args*>(p.args.data() + r.args);
}

}  // namespace

std::optional<Product> product_of(const CaseRun& run) {
  const Program& p = run.program();
  if (p.records.size() != 1) return {};
  const Record& r = p.records[0];
  const auto t = run.executable().operands(0);
  Product out;
  if (r.op == Matmul::name) {
    const auto& a = args_of<Matmul::Args>(p, r);
    if (a.scale != 1 || t[1].rank() != 2 || t[2].rank() != 2) return {};
    out.transpose_a = a.transpose_a, out.transpose_b = a.transpose_b;
  } else if (r.op == Linear::name) {
    const auto& a = args_of<LinearArgs>(p, r);
    if (t[3] || t[4]) return {};
    out.transpose_b = !a.conv1d;
  } else {
    return {};
  }
  const View y = t[0], a = t[1], b = t[2];
  if (!y.is_contiguous() || !a.is_contiguous() || !b.is_contiguous() || y.dtype() != a.dtype() ||
      b.dtype() != a.dtype())
    return {};
  out.m = y.rows(), out.n = y.cols(), out.k = out.transpose_a ? a.rows() : a.cols();
  out.dtype = a.dtype(), out.a = a.data(), out.b = b.data(), out.d = y.data();
  return out;
}

}  // namespace hpcdl::lab::compare
