#pragma once

#include <string>

#include "hpcdl/quant/input_moments.h"

namespace hpcdl::quant {

/// What is known of the inputs of a model's matrices. Matrices are asked about in the order of their places, and once.
class Calibration {
 public:
  virtual ~Calibration() = default;
  /// The place of a matrix in the order in which the model computes; -1: nothing is known of it.
  virtual std::int64_t place(const std::string& name) const = 0;
  /// Of the inputs that the matrix has if the matrices before it have the values that they were given; valid until the
  /// next call.
  virtual const InputMoments& moments(const std::string& name) = 0;
  /// The values (out, in), in f32, that the matrix has from now on.
  virtual void replaced(const std::string& name, const View& values) = 0;
};

}  // namespace hpcdl::quant
