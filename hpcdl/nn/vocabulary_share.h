#pragma once
// How ranks with different layers divide the tables of a vocabulary, that of the embedding and that of the head, as data:
// each has some of the rows (ops/vocabulary). A decoder records their exchanges in scopes that end with
// kVocabularyScope, from which a pipeline takes them (pipe/cut.h), and parallel/ binds the ranks.

#include <string_view>

#include "hpcdl/program/axis.h"

namespace hpcdl::nn {

inline constexpr std::string_view kVocabularyScope = "vocabulary";

struct VocabularyShare {
  Axis axis;
  int rank = 0;
  /// How often all ranks wait for each other in a micro-batch: 2, or 1 with more arithmetic (ops/vocabulary).
  int barriers = 2;

  int size() const { return axis.ranks; }
};

}  // namespace hpcdl::nn
