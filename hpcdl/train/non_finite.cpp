#include "hpcdl/train/non_finite.h"

#include <fmt/format.h>

#include <cmath>

#include "hpcdl/core/describe.h"

namespace hpcdl::train {

namespace {

/// Elements from the first to the last of x, those between its rows included.
std::int64_t extent(const View& x) {
  std::int64_t last = 0;
  for (int i = 0; i < x.rank(); ++i) last += (x[i] - 1) * x.strides()[i];
  return last + 1;
}

}  // namespace

bool all_finite(const Stream& s, const View& x) {
  if (!x || (x.dtype() != DType::f32 && x.dtype() != DType::bf16 && x.dtype() != DType::f16) || x.size() == 0) return true;
  if (x.device().is_cuda()) {
    const Spec all{{extent(x)}, x.dtype()};
    const OwnedTensor host(all);
    copy(s, host.tensor, View(x.data(), all, x.device()));
    return all_finite(s, View(host.tensor.data(), x.spec(), x.strides(), {}));
  }
  const auto finite = [&]<class T>() {
    const std::int64_t rows = x.rows(), cols = x.cols(), stride = x.row_stride();
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c)
        if (!std::isfinite(static_cast<float>(x.ptr<T>()[r * stride + c]))) return false;
    return true;
  };
  return x.dtype() == DType::f16 ? finite.template operator()<f16>() : visit_dtype(x.dtype(), finite);
}

std::optional<std::string> first_non_finite(const Executable& exe, Stream& s) {
  const auto& program = exe.program();
  std::optional<std::string> found;
  for (int i = 0; i < static_cast<int>(program.records.size()) && !found; ++i) {
    exe.run(s, i, i + 1, {});
    const auto& r = program.records[static_cast<std::size_t>(i)];
    const auto tensors = exe.operands(i);
    for (std::uint32_t k = 0; k < r.operand_count; ++k) {
      const auto& o = program.operands[r.operands + k];
      if (o.slot < 0 || o.access == Access::read || all_finite(s, tensors[k])) continue;
      const auto& name = program.slots[static_cast<std::size_t>(o.slot)].name;
      if (name == "scratch") continue;  // need not be written at all
      found = fmt::format("record {} ({}, {}{}{}) wrote \"{}\", {}", i, r.op, phase_name(r.phase), program.scopes[r.scope].empty() ? "" : ", ",
                          program.scopes[r.scope], name, to_string(o.spec));
      break;
    }
  }
  return found;
}

}  // namespace hpcdl::train
