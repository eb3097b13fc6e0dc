#pragma once
// What tensor parallelism costs on the wire, by formula. docs/distributed.md has the same in words.

#include "hpcdl/io/model_config.h"
#include "hpcdl/parallel/tensor.h"

namespace hpcdl::parallel {

/// Bytes that each of p ranks sends in one training step of N tokens, with ring algorithms and activations of e bytes,
/// as multiples of (p-1)/p:
///
///   embedding and last norm      4 N C e          whatever the scheme
///   a layer, conjugate           8 N C e          4 all-reduces, two in each direction
///   a layer, sequence            8 N C e          the same as 4 all-gathers and 4 reduce-scatters
///   a layer, naive               (6 C + 2 A + 2 F) N e   what goes into o and down is gathered, what comes out, too;
///                                                 A is the width of all heads
///   loss                         24 N             three numbers of each token
///   norms, sequence              8 x their parameters
///   gradient norm                8 p
double wire_bytes(TensorParallel::Scheme scheme, const io::ModelConfig& model, std::int64_t tokens, int element_bytes,
                  int ranks);

}  // namespace hpcdl::parallel
