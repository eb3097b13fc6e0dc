#pragma once
// The two records that the recorder itself needs: y = value, and y += x.

#include "hpcdl/op.h"
#include "hpcdl/op_info.h"
#include "hpcdl/program/on.h"

namespace hpcdl {

namespace cpu {
template <class Isa> void fill(Isa, Pool&, Tensor y, float value);
template <class Isa> void add_into(Isa, Pool&, Tensor y, View x);
}  // namespace cpu
namespace cuda {
void fill(Stream&, Tensor y, float value);
void add_into(Stream&, Tensor y, View x);
}  // namespace cuda

/// y = value. y: f32 or bf16, uniform rows. Not differentiable.
struct Fill {
  static constexpr std::string_view name = "fill";
  struct Args {
    float value = 0;
  };
  static Spec infer(const Spec& y, const Args&) { return y; }
  static void check_record(const RawRecord& r);
  static void forward(Stream& s, Tensor y, const Args& a) {
    on(s, [&](auto isa, Pool& pool) { cpu::fill(isa, pool, y, a.value); }, [&](auto& q) { cuda::fill(q, y, a.value); });
  }
};

/// y += x of one shape and dtype. A raw record: operands y, x.
struct AddInto {
  static constexpr std::string_view name = "add_into";
  static Cost cost(const Spec& x) { return {.operations = static_cast<double>(x.size())}; }
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void*) {
    on(
        s, [&](auto isa, Pool& pool) { cpu::add_into(isa, pool, t[0], t[1]); },
        [&](auto& q) { cuda::add_into(q, t[0], t[1]); });
  }
};

}  // namespace hpcdl
