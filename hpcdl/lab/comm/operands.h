#pragma once
// The tensors of a benchmarked collective: zeros while it is timed (a sum that is summed again stays finite), numbers
// with all their digits while it is checked.

#include <cstdlib>

#include "hpcdl/comm/transport.h"
#include "hpcdl/lab/comm/bench.h"

namespace hpcdl::lab {

class CommOperands {
 public:
  CommOperands(const comm::Group& g, const CommCase& c, const std::vector<CommSide>& sides);

  void call(const comm::Group& g, const Stream& s, const CommSide& side) const;
  void fill(const comm::Group& g, const CommSide& side);
  void clear();
  /// Error of the last call, see CommResult::max_error. At most some millions of elements are compared.
  double error(const comm::Group& g, const CommSide& side) const;

 private:
  std::byte* input(const CommSide& side) const {
    return side.memory == Memory::window ? window_->block(local_) : in_.get();
  }
  std::byte* output(const CommSide& side) const {
    return case_.what == comm::Collective::all_reduce ? input(side) : out_.get();
  }

  CommCase case_;
  std::int64_t part_;  // elements of one rank's part
  std::int64_t in_count_, out_count_;
  int local_ = 0;
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  /// Memory from malloc, as in MPI programs.
  std::unique_ptr<std::byte, Free> in_, out_;
  std::shared_ptr<comm::Window> window_;
};

/// "fp32", "bf16", "fp16", "fp64", "int32" ... and the names of safetensors in small letters. `none`: unknown.
DType comm_dtype(const std::string& name);
std::string comm_dtype_name(DType d);

}  // namespace hpcdl::lab
