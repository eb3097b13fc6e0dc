#include "hpcdl/train/non_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hpcdl/core/describe.h"
#include "hpcdl/program/axis.h"

namespace hpcdl::train {

namespace {

/// Elements from the first to the last of x, including those between its rows.
std::int64_t extent(const View& x) {
  std::int64_t last = 0;
  for (int i = 0; i < x.rank(); ++i) last += (x[i] - 1) * x.strides()[i];
  return last + 1;
}

/// Samples of a batch with bad values in x, if the first dim of x is the samples; otherwise none.
std::vector<std::int64_t> bad_rows(const Stream& s, const View& x, std::int64_t batch) {
  std::vector<std::int64_t> rows;
  if (x.rank() < 2 || batch < 1 || x[0] % batch != 0) return rows;
  auto shape = x.shape();
  shape[0] = x[0] / batch;
  const auto step = shape[0] * x.strides()[0] * dtype_bytes(x.dtype());
  for (std::int64_t b = 0; b < batch; ++b)
    if (!all_finite(s, View(x.ptr<std::byte>() + b * step, {shape, x.dtype()}, x.strides(), x.device())))
      rows.push_back(b);
  return rows;
}

std::optional<NonFinite> bad_input(const Instance& exe, const Stream& s, std::int64_t batch) {
  const auto& program = exe.program();
  for (std::size_t i = 0; i < program.slots.size(); ++i) {
    const auto& slot = program.slots[i];
    if (slot.kind != SlotKind::input) continue;
    const View x(exe.arena()->data() + exe.plan().offset[i], slot.spec, exe.arena()->device());
    if (!all_finite(s, x))
      return NonFinite{fmt::format("the input \"{}\", {}", slot.name, to_string(slot.spec)), true, -1,
                       bad_rows(s, x, batch)};
  }
  return {};
}

/// What a record wrote, after it has run.
std::optional<NonFinite> bad_output(const Instance& exe, int record, const Stream& s, std::int64_t batch) {
  const auto& program = exe.program();
  const auto& r = program.records[static_cast<std::size_t>(record)];
  const auto tensors = exe.operands(record);
  for (std::uint32_t k = 0; k < r.operand_count; ++k) {
    const auto& o = program.operands[r.operands + k];
    if (o.slot < 0 || o.access == Access::read || all_finite(s, tensors[k])) continue;
    const auto& slot = program.slots[static_cast<std::size_t>(o.slot)];
    if (slot.role == SlotRole::scratch) continue;  // need not be written at all
    auto what =
        fmt::format("record {} ({}, {}{}{}) wrote \"{}\", {}", record, r.op, phase_name(r.phase),
                    program.scopes[r.scope].empty() ? "" : ", ", program.scopes[r.scope], slot.name, to_string(o.spec));
    return NonFinite{std::move(what), false, -1,
                     slot.kind == SlotKind::state ? std::vector<std::int64_t>{} : bad_rows(s, tensors[k], batch)};
  }
  return {};
}

}  // namespace

bool all_finite(const Stream& s, const View& x) {
  if (!x || (x.dtype() != DType::f32 && x.dtype() != DType::bf16 && x.dtype() != DType::f16) || x.size() == 0)
    return true;
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
  return visit_dtype(x.dtype(), finite);
}

std::optional<NonFinite> first_non_finite(const Instance& exe, Stream& s, std::int64_t batch) {
  auto found = bad_input(exe, s, batch);
  const auto& records = exe.program().records;
  const bool all = std::ranges::any_of(records, [&](const Record& r) { return !exchanges(exe.program(), r).empty(); });
  for (int i = 0; i < static_cast<int>(records.size()) && (all || !found); ++i) {
    exe.run(s, i, i + 1, {});
    if (!found) found = bad_output(exe, i, s, batch);
  }
  return found;
}

}  // namespace hpcdl::train
