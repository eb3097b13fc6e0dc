#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"

namespace hpcdl::nn {

/// Adapters of one linear layer (out, in), of which every token has its own or none (ops/adapter_rows): for inference on
/// a CPU. They are kept together, in f32.
class AdapterSet {
 public:
  /// What one of them adds to the layer. Absent views: nothing.
  struct Member {
    View a, b;  // (r, in) and (out, r)
    float scale = 1;
    std::vector<float> shift = {};  // (out): its bias less that of the layer; empty: it has the bias of the layer
  };
  AdapterSet(const std::string& layer, std::int64_t in, std::int64_t out, std::span<const Member> members);

  /// base (..., out) and what each row of x (..., in) adds. chosen: i32, one for each row; -1: nothing.
  Var operator()(const Var& x, const Var& base, const Var& chosen) const;
  std::int64_t bytes() const;

 private:
  std::string name_;  // in programs
  OwnedTensor a_, b_, ends_, scales_, shifts_;
};

}  // namespace hpcdl::nn
