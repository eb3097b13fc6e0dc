#pragma once

#include "hpcdl/nn/param.h"
#include "hpcdl/ops/embedding/embedding.h"

namespace hpcdl::nn {

/// A table of rows, looked up by i32 ids.
struct Embedding {
  Weight weight;  // (rows, width)

  Embedding() = default;
  Embedding(std::int64_t rows, std::int64_t width, float std) {
    weight.spec = {{rows, width}, DType::f32};
    weight.init = Init::normal;
    weight.std = std;
    weight.decay = true;
  }
  void visit(auto&& f) { f("weight", weight); }
};

}  // namespace hpcdl::nn
