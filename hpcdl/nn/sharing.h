#pragma once
// How several ranks share the layers of a model (tensor parallelism), as data: a model gives each parameter a place
// (models/shard.cpp), modules record the resulting exchanges (ops/exchange), and parallel/ binds the ranks.
//
//   columns (q, k, v, gate, up, fc)   a rank has some of the outputs: whole heads, or neurons of the MLP
//   rows (o, down, proj)              a rank has the corresponding inputs; its product is a summand of the output
//   vocabulary (embedding and head)   a rank has some rows of the table (ops/vocabulary)
//   entering (norms)                  before layers of the other kinds: every rank has the whole parameter

#include <cstdint>
#include <string_view>

#include "hpcdl/program/axis.h"

namespace hpcdl::nn {

struct Sharing {
  enum class Scheme : std::uint8_t {
    conjugate,  // an all-reduce after row layers, an all-reduce of gradients before column layers; activations between
                // them are on all ranks
    sequence,   // the same, with each all-reduce divided in two: between the layers each rank has a part of the tokens,
                // so that norms and dropout are computed once
    naive,      // the reference: o and down also have a part of the outputs, and everything is gathered around them
  };
  using enum Scheme;

  Axis axis;
  int rank = 0;
  Scheme scheme = conjugate;

  int size() const { return axis.ranks; }
};

constexpr std::string_view scheme_name(Sharing::Scheme s) {
  constexpr std::string_view names[] = {"conjugate", "sequence", "naive"};
  return names[static_cast<int>(s)];
}

enum class Place : std::uint8_t { whole, columns, rows, vocabulary, entering };

}  // namespace hpcdl::nn
