#pragma once
// How several ranks share the tokens of every sequence (context parallelism), as data: modules record the resulting
// exchanges (models/context.cpp), and parallel/ binds the ranks.
//
// A sequence of T tokens is cut into 2c chunks for c ranks. Rank r has chunks r and 2c - 1 - r, so that all ranks attend
// to equally many keys; with the mode `ring` it has chunks 2r and 2r + 1. Its tokens (2 B, T / 2c) hold the first chunk
// of all B sequences, then the second of all.
// Source: Grattafiori et al., "The Llama 3 herd of models", 2024 (chunks i and 2c - 1 - i, gathered keys and values);
// Jacobs et al., "DeepSpeed Ulysses", 2023; Liu et al., "Ring attention with blockwise transformers", 2023; Brandon et
// al., "Striped attention", 2023 (a balanced ring).

#include <cstdint>
#include <string_view>

#include "hpcdl/program/axis.h"

namespace hpcdl::nn {

struct ContextShare {
  enum class Mode : std::uint8_t {
    gather,   // every rank gathers the keys and values of the whole sequence
    ulysses,  // for attention, every rank has the whole sequence, and a part of the heads
    ring,     // keys and values go from rank to rank; neighbouring chunks, so that late ranks compute more
    zigzag,   // the same with the chunks of the other modes
  };
  using enum Mode;
  static constexpr int kChunks = 2;

  Axis axis;
  int rank = 0;
  Mode mode = gather;

  int size() const { return axis.ranks; }
  bool goes_around() const { return mode == ring || mode == zigzag; }
  int all_chunks() const { return kChunks * size(); }
  /// The index in the sequence of a chunk that a rank has.
  static int chunk(Mode mode, int of_rank, int i, int ranks) {
    if (mode == ring) return kChunks * of_rank + i;
    return i == 0 ? of_rank : kChunks * ranks - 1 - of_rank;
  }
  int chunk(int i) const { return chunk(mode, rank, i, size()); }
  /// The shape of the tokens that a rank has of B sequences of T tokens. Throws UsageError if the chunks do not divide T.
  Shape tokens_of_rank(std::int64_t batch, std::int64_t length) const;
};

}  // namespace hpcdl::nn
