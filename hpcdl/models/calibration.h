#pragma once
// The inputs of a model's matrices on a text, block by block, without more memory than a block needs.

#include <span>
#include <vector>

#include "hpcdl/models/language_model.h"
#include "hpcdl/models/substitutes.h"
#include "hpcdl/quant/calibration.h"

namespace hpcdl::models {

/// Passes the text through one block at a time, in windows: first to see the inputs of its matrices, and again with the
/// values that they were given, so that later blocks see what the quantised model computes. Between the blocks it keeps what
/// the next one reads of each window: 4 bytes for each token and each number of the residual stream. Experts and matrices
/// outside of linear layers have no place.
class ModelCalibration final : public quant::Calibration {
 public:
  /// The model is on a CPU, and neither quantised nor shared by ranks; it outlives this. Tokens that do not fill a window
  /// are left out. Throws Error if there are too few, and for ids outside of the vocabulary.
  ModelCalibration(const LanguageModel& model, Pool& pool, std::span<const std::int32_t> tokens);

  std::int64_t place(const std::string& name) const override;
  const quant::InputMoments& moments(const std::string& name) override;
  void replaced(const std::string& name, const View& values) override;

  std::int64_t tokens() const { return std::ssize(windows_) * length_; }

 private:
  struct Use {
    int record, x;              // where a matrix is multiplied, and which operand of the record is its input
    std::size_t block, inputs;  // the latter: which input of the block
    bool transposed;
  };
  struct Block {
    int begin, end;                         // records
    std::vector<std::int64_t> inputs = {};  // their widths; several matrices may share one
  };
  using Window = std::vector<std::byte>;  // what later records read of a window, slot by slot

  void find_uses();
  const Use* find(const std::string& name) const;
  /// Slots that hold something before a record, which it or a later one reads.
  std::vector<int> alive(int record) const;
  void load(const Instance& exe, int record, const Window& window) const;
  Window saved(const Instance& exe, int record) const;
  void observe();
  void pass_through();

  const LanguageModel& model_;
  StepParams params_;
  Stream stream_;
  std::string prefix_;
  std::int64_t length_;
  std::shared_ptr<const Pass> pass_;
  std::map<std::string, Use, std::less<>> uses_;
  std::vector<Block> blocks_;
  std::vector<Window> windows_;
  std::shared_ptr<Buffer> arena_;
  std::size_t at_ = 0;                        // the block that the windows have reached
  std::vector<quant::InputMoments> moments_;  // of its inputs; empty until they are observed
  Substitutes substitutes_;                   // in that block
};

}  // namespace hpcdl::models
