#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"

namespace hpcdl::nn {

/// The adapters of one linear layer (out, in) among which every token chooses one or none (ops/adapter_rows), for inference.
/// They are kept together, the matrices in one type.
class AdapterSet {
 public:
  /// What one of them adds to the layer. Absent views: nothing.
  struct Member {
    View a, b;  // (r, in) and (out, r)
    float scale = 1;
    std::vector<float> shift = {};  // (out): its bias less that of the layer; empty: it has the bias of the layer
  };
  AdapterSet(const std::string& layer, std::int64_t in, std::int64_t out, std::span<const Member> members,
             DType matrices = DType::f32);

  /// base (..., out) and what each row of x (..., in) adds. chosen: i32, one for each row; -1: nothing.
  Var operator()(const Var& x, const Var& base, const Var& chosen) const;
  std::int64_t bytes() const;
  /// What it reads, to be moved to a GPU with the model; release_host() must follow.
  std::vector<Tensor*> tensors();
  void release_host();

 private:
  std::array<OwnedTensor*, 5> owned() { return {&a_, &b_, &ends_, &scales_, &shifts_}; }

  std::string name_;  // in programs
  OwnedTensor a_, b_, ends_, scales_, shifts_;
};

}  // namespace hpcdl::nn
