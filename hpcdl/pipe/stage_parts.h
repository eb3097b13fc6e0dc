#pragma once
// The part of a rank in a pipeline: the programs of its stages, and the tensors that they leave for each other.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/instance.h"
#include "hpcdl/pipe/cut.h"
#include "hpcdl/pipe/schedule.h"

namespace hpcdl::pipe {

/// A tensor of a frame, the memory of one micro-batch in one stage.
struct FrameTensor {
  std::string name;  // under which programs bind it
  Spec spec;
  bool operator==(const FrameTensor&) const = default;
};

/// A tensor that the caller of a pass fills or reads: its number among the inputs or the outputs, and its name.
struct FrameEnd {
  std::size_t number = 0;
  std::string name;
};

/// What a rank computes of a vocabulary whose rows the ranks divide. It has a memory of its own for each of its shares of
/// a micro-batch (ShareSlots).
struct VocabularyParts {
  using Part = std::shared_ptr<const Planned>;
  /// The tensors of such a memory, and which of them the caller fills.
  struct Share {
    std::vector<FrameTensor> tensors = {};
    std::vector<FrameEnd> inputs = {};
    std::int64_t bytes() const;
  };

  Part lookup = {}, logits = {};
  std::array<Part, 2> loss = {}, lookup_gradient = {};  // by Write; the second is null in an inference pass
  Part merge = {};                                      // with one barrier, in training
  Share rows = {}, head = {}, gradients = {};
  std::vector<FrameEnd> outputs = {};  // of loss
  /// The tensors that the ranks exchange (VocabularyCut), by their names; the last two are empty in an inference pass.
  FrameTensor sum_of_rows = {}, hidden = {}, mine = {}, all = {}, gradient = {}, rows_gradient = {};
  FrameTensor summands = {}, all_summands = {};  // with one barrier, in training

  std::int64_t arena_bytes() const;
};

struct StageParts {
  using Part = std::shared_ptr<const Planned>;

  int stage = 0;
  Part forward = {};
  // By Write: the first run of a step overwrites the gradients of parameters, others add to them. Null in an inference
  // pass; `weights` also if they are part of `backward`.
  std::array<Part, 2> backward = {}, weights = {};
  std::vector<FrameTensor> frame = {};
  std::vector<FrameEnd> inputs = {}, outputs = {};
  /// What the stage gets from the stage before and sends to the next one, in their order in the pass; and what it sends
  /// to the stage before in backward. The other ends have the same lists.
  std::vector<FrameTensor> from_before = {}, to_next = {}, gradients_to_before = {}, gradients_from_next = {};

  /// The largest arena of its programs.
  std::int64_t arena_bytes() const;
};

/// A recorded pass with the variables that its caller fills and reads.
struct WholePass {
  Program program;
  std::vector<Var> inputs, outputs;
};

/// Bytes of the frames and the arriving tensors of a rank. `schedule`: of lower(). `vocabulary`: null if the ranks divide
/// none.
std::int64_t frame_bytes(const Schedule& schedule, std::span<const StageParts> parts, int rank,
                         const VocabularyParts* vocabulary = nullptr);
/// The part of it that belongs to the vocabulary.
std::int64_t share_bytes(const Schedule& schedule, const VocabularyParts& vocabulary, int rank);

/// An edit of a program of a stage before its memory is planned; null: none.
using EditPart = std::function<Program(Program)>;

/// The parts of all stages of a training pass that was recorded once with each kind of Write.
std::vector<StageParts> training_parts(const WholePass& overwriting, const WholePass& adding,
                                       const Partition& partition, Backward backward, const EditPart& edit = nullptr);
/// The same of a pass without backward.
std::vector<StageParts> inference_parts(const WholePass& pass, const Partition& partition,
                                        const EditPart& edit = nullptr);
/// The same of the share of a vocabulary; nothing if the pass has none.
std::optional<VocabularyParts> vocabulary_training_parts(const WholePass& overwriting, const WholePass& adding,
                                                         const Partition& partition, Backward backward,
                                                         const EditPart& edit = nullptr);
std::optional<VocabularyParts> vocabulary_inference_parts(const WholePass& pass, const Partition& partition,
                                                          const EditPart& edit = nullptr);

}  // namespace hpcdl::pipe
