#pragma once
// Where the tensors of any model are: own memory or mapped files, their gradients, the copy on
// a GPU, 16-bit copies of matrices. Modules see this through their nn::Params, all other code through the lists of
// NamedParameters.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/core/buffer.h"
#include "hpcdl/nn/param.h"

namespace hpcdl::models {

struct NamedParameter {
  std::string name;  // as in files of PyTorch
  Tensor value;
  Tensor gradient;  // absent unless the model was made for training
  bool decay;       // weight decay applies
  /// The value in host memory as files hold it, which files are read into and written from. On a CPU the value itself,
  /// unless files hold its dims in another order.
  Tensor host;
  Tensor copy = {};               // the value rounded to 16 bits, for products: keep_copies()
  Part part = {};                 // of the whole parameter, that `value` is: tensor parallelism
  bool partial_gradient = false;  // the gradients of all ranks along tp are addends of the parameter's
};

class ModelMemory {
 public:
  /// In the order of the module's visit(). They must stay where they are as long as this lives.
  explicit ModelMemory(std::vector<nn::Param*> params) : params_(std::move(params)) {}

  /// Own memory for every tensor: one block of values, one of gradients.
  void allocate(bool with_gradients);
  bool described() const { return described_; }
  /// What tensors and the gaps between them take, or would take, where the model lies; without others' gradients.
  std::int64_t bytes() const;
  /// Own memory, filled: a pure function of the seed; a part of a parameter gets its part of it. Without a seed every
  /// tensor has a spec and none has memory, now or later: enough to record programs and to say what they would take.
  void create(std::optional<std::uint64_t> seed, bool with_gradients);
  /// Makes the lists, once every Param that has memory is bound to it.
  void list();

  std::vector<NamedParameter>& parameters() { return parameters_; }
  /// State and counters: saved, not trained.
  std::vector<NamedParameter>& buffers() { return buffers_; }
  /// Trained elements, over all ranks that share the layers.
  std::int64_t parameter_count() const;
  Device device() const { return device_; }

  // As class Trainable says. `others`: what programs read besides the parameters.
  void to_device(const Stream& s, const std::vector<Tensor*>& others);
  void place_gradients(const std::function<Tensor(const NamedParameter&)>& where);
  void forget_gradients();
  void own_gradients();
  void keep_copies(DType type);
  void round_copies(Stream& s) const;
  void fetch(const Stream& s) const;
  void store(const Stream& s) const;
  void count_pass() const;

 private:
  struct Listed {
    nn::Param* param;
    std::vector<NamedParameter>* list;
    std::size_t at;
    Tensor memory;  // the value in host memory, dims in memory's order
    NamedParameter& known() const { return (*list)[at]; }
    bool reordered() const { return param->channels_last.rank() == 4; }
  };
  class Cursor;
  void initialise(std::uint64_t seed);
  Buffer block(std::int64_t bytes, Device device = {}) const { return described_ ? Buffer() : Buffer(bytes, device); }
  Buffer move(const Stream& s, const std::vector<Tensor*>& list, bool with_values) const;

  std::vector<nn::Param*> params_;
  std::vector<NamedParameter> parameters_, buffers_;
  std::vector<Listed> listed_;  // both lists
  Buffer values_, gradients_;   // own memory
  Buffer files_;                // of tensors that files hold in another order
  Buffer copies_;               // of matrices, in 16 bits
  bool elsewhere_ = false;      // gradients do not lie in own memory
  bool described_ = false;
  Device device_;
  Buffer on_device_;  // a copy of everything that programs read
};

}  // namespace hpcdl::models
