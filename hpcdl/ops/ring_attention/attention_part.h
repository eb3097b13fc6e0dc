#pragma once
// Attention to one part of the keys that queries see (ops/attention), and its gradient, as records of their own.

#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/program.h"

namespace hpcdl {

/// A raw record: operands out, lse, q, k, v.
struct AttentionPart {
  static constexpr std::string_view name = "attention.part";
  using RecordArgs = Attention::Args;
  static constexpr std::size_t kOperands = 5;
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void* args) {
    Attention::forward(s, t[0], t[1], t[2], t[3], t[4], {}, *static_cast<const RecordArgs*>(args));
  }
};

/// A raw record: operands dq, dk, dv, which may be absent, q, k, v, out, lse, dout and scratch, as
/// Attention::backward() takes them.
struct AttentionPartGradient {
  static constexpr std::string_view name = "attention.part.gradient";
  using RecordArgs = Attention::Args;
  static constexpr std::size_t kOperands = 10;
  static void check_record(const RawRecord& r);
  static void run(Stream& s, const Grad* t, const void* args) {
    Attention::backward(s, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9],
                        *static_cast<const RecordArgs*>(args));
  }
};

}  // namespace hpcdl
