#pragma once
// The tensors of a benchmarked collective. On a CPU: zeros while it is timed (a sum that is summed again stays finite),
// numbers with all their digits while it is checked. On a GPU: small integers, exact in every type, and so are their
// sums over a few ranks, except for bf16 with more than 8 ranks.

#include <memory>

#include "hpcdl/buffer.h"
#include "hpcdl/comm/transport.h"
#include "tools/comm/bench.h"

namespace hpcdl::lab {

class CommOperands {
 public:
  /// On the device of `s`.
  CommOperands(const comm::Group& g, const Stream& s, const CommCase& c, const std::vector<CommSide>& sides);

  void call(const comm::Group& g, const Stream& s, const CommSide& side) const;
  void fill(const comm::Group& g, const CommSide& side);
  void clear();
  /// Error of the last call, see CommResult::max_error, after it has ended. At most some millions of elements are
  /// compared.
  double error(const comm::Group& g, const CommSide& side) const;

 private:
  Tensor input(const CommSide& side) const;
  Tensor output(const CommSide& side) const;
  double value(int rank, std::int64_t i) const;
  Tensor allocate(std::int64_t count);

  CommCase case_;
  mutable Stream s_;
  std::int64_t part_;  // elements of one rank's part
  int local_ = 0;
  std::vector<std::shared_ptr<void>> memory_;
  Tensor in_, out_;  // without `out_`: in place
  std::shared_ptr<comm::Window> window_;
};

/// "fp32", "bf16", "fp16", "fp64", "int32" ... and the names of safetensors in small letters. `none`: unknown.
DType comm_dtype(const std::string& name);
std::string comm_dtype_name(DType d);

}  // namespace hpcdl::lab
