#pragma once
// The ranks of a pipeline that divide the tables of a vocabulary. How they do so is data (nn/vocabulary_share.h).

#include <utility>

#include "hpcdl/nn/vocabulary_share.h"
#include "hpcdl/parallel/axis.h"

namespace hpcdl::parallel {

class VocabularyParallel final : public nn::VocabularyShare {
 public:
  VocabularyParallel(comm::Group group, int how_many_barriers) : ranks_(std::move(group)) {
    axis = ranks_.axis(), rank = ranks_.group().rank(), barriers = how_many_barriers;
  }
  VocabularyParallel(const VocabularyParallel&) = delete;
  VocabularyParallel& operator=(const VocabularyParallel&) = delete;

 private:
  GroupAxis ranks_;
};

}  // namespace hpcdl::parallel
