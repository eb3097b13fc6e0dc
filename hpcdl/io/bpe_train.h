#pragma once
// Learns the merges of a byte-level BPE from counted words. The result is that of BpeTrainer of the `tokenizers`
// library with the byte-level alphabet: the most frequent pair first, of equals the one with the lowest ids.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/io/bpe.h"

namespace hpcdl::io {

using WordCounts = std::vector<std::pair<std::string, std::int64_t>>;  // raw bytes of distinct words

struct BpeTraining {
  int vocab_size = 0;
  std::vector<std::string> special = {};                   // take the first ids
  std::int64_t min_count = 1;                              // a pair seen less often is not merged
  std::function<void(int done, int total)> progress = {};  // called with the number of tokens so far
};

/// Throws Error when the vocabulary has no room for the bytes and the special tokens. May return fewer tokens than
/// asked when no pair is left. Takes two bytes for each byte of the words, four where the vocabulary has more than
/// 65,536 tokens; the words are given up one by one meanwhile.
BpeVocab train_bpe(WordCounts words, const BpeTraining& training);

}  // namespace hpcdl::io
