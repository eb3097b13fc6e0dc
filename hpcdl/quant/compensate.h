#pragma once
// Rounds a matrix so that what it computes changes least, and not its numbers.

#include "hpcdl/buffer.h"
#include "hpcdl/pool.h"
#include "hpcdl/quant/float_rows.h"
#include "hpcdl/quant/input_moments.h"
#include "hpcdl/quant/rounder.h"

namespace hpcdl::quant {

/// The share of the mean of the moments' diagonal that is added to it: text that was not seen has other inputs.
inline constexpr double kDamping = 0.01;

/// Rounds the weights of one input after the other by `rounder`, those of the largest inputs first, and changes the
/// weights of the inputs that follow so that they make up for the error: the update of Frantar et al., "GPTQ", 2023. With
/// H the damped moments and H = L L^T, each row of errors e has the output error |e L|^2, whose terms depend on
/// one more error each; every weight is rounded where its term is smallest (Babai's nearest plane, which needs no inverse of
/// H). Returns the values (N, K) that the weights have now, in f32. Sums are in double, and do not depend on the number of
/// threads. Throws Error that names the matrix for a weight that is NaN or infinite, and if the moments are.
OwnedTensor compensate(Pool& pool, const FloatRows& w, const InputMoments& inputs, Rounder& rounder,
                       double damping = kDamping);

struct Compensated {
  Compensation::Parts parts;
  OwnedTensor values;  // (N, K), f32
};

/// Quantises a matrix and lets its weights make up for their errors. `activation_scales`: its scales are searched for with
/// the squares of its inputs as importance. Throws Error as compensate() and Codec::quantize().
Compensated quantize_compensated(Pool& pool, const Compensation& codec, MatrixSource source, const InputMoments& inputs,
                                 const nn::CodecOptions& options, bool activation_scales, nn::RoundingError& error);

}  // namespace hpcdl::quant
