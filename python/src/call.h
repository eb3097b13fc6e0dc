#pragma once
// A call of an op from Python: arguments as views, results, scratch, and running without the GIL.
//
//   Call call("softmax");
//   const View x = call.in("x", object);
//   Result y = call.out("out", out, Softmax::infer(x.spec(), args));
//   call.run([&](Stream& s) { Softmax::forward(s, y.tensor, x, args); });
//   return call.give(y);

#include <array>
#include <string_view>

#include "hpcdl/stream.h"
#include "python/src/array.h"
#include "python/src/gpu.h"
#include "python/src/runtime.h"

namespace hpcdl::python {

/// Element types an argument may have.
enum class Type : std::uint8_t { floating, f32, u8, index, any };  // floating: f32, bf16, on a GPU f16; index: i32, i64
/// The allowed strides. rows: dense rows at a constant distance. matrix: the same for the array or its transpose.
/// dense_last: any strides except for the last dim.
enum class Layout : std::uint8_t { contiguous, rows, matrix, dense_last };

struct Form {
  Type type = Type::floating;
  Layout layout = Layout::rows;
};
inline constexpr Form kRows{}, kContiguous{Type::floating, Layout::contiguous},
    kHeads{Type::floating, Layout::dense_last}, kF32{Type::f32, Layout::contiguous},
    kBytes{Type::u8, Layout::contiguous}, kIndices{Type::index, Layout::contiguous};

/// A result: in the array that the caller gave as out=, or in new memory. Absent if it is not needed.
struct Result {
  Tensor tensor;
  Block block;
  nb::object array;  // the caller's, or a new one on a GPU

  explicit operator bool() const { return static_cast<bool>(tensor); }
  operator Tensor() const { return tensor; }
  operator View() const { return tensor; }
  Grad overwrite() const { return tensor ? Grad(tensor, Write::overwrite) : Grad(); }
};

class Call {
 public:
  explicit Call(std::string_view op) : op_(op) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    for (std::size_t i = 0; i < count_; ++i) slots_.at[i].~Array();
  }

  std::string_view op() const { return op_; }
  void set_framework(Framework f) { framework_ = f; }
  Framework framework() const { return framework_; }
  /// The device of the arguments so far, and of the results.
  Device device() const { return device_; }
  void set_device(Device d) { device_ = d; }
  /// GPU: memory from which ops read the step parameters.
  void set_params(StepParams* mirror) { mirror_ = mirror; }

  /// The argument as a view. Throws TypeError or Error unless it has that form.
  View in(const char* name, nb::handle object, Form form = kRows);
  /// The same, absent for None.
  View in_or_absent(const char* name, nb::handle object, Form form = kRows);
  /// An argument that is updated in place.
  Tensor update(const char* name, nb::handle object, Form form);

  /// Memory for a result: `object` (the caller's out=) or, for None, new. A given one must not overlap any argument,
  /// except that it may be `in_place`. `strides` (rank 0: row-major) are those of new memory.
  Result out(const char* name, nb::handle object, const Spec& spec, const View& in_place = {},
             const Shape& strides = {}, Layout layout = Layout::rows);
  /// The same, absent unless `needed`.
  Result out_if(bool needed, const char* name, nb::handle object, const Spec& spec, Layout layout = Layout::rows) {
    return needed ? out(name, object, spec, {}, {}, layout) : Result();
  }
  /// One number per row, contiguous.
  Result statistic_if(bool needed, const char* name, nb::handle object, const Spec& spec) {
    return out_if(needed, name, object, spec, Layout::contiguous);
  }
  /// Scratch memory, valid until the call ends.
  Tensor scratch(const Spec& spec);

  /// Runs f(stream) with the GIL released: on the pool, or queued on the GPU's current stream.
  template <class F> void run(F&& f) {
#if HPCDL_CUDA
    if (device_.is_cuda()) {
      GpuTurn turn(framework_, device_, mirror_);
      const nb::gil_scoped_release released;
      return static_cast<void>(f(turn.stream()));
    }
#endif
    const nb::gil_scoped_release released;
    const Turn turn;
    Stream stream(turn.pool());
    f(stream);
  }

  /// The result as an object of the framework of the first argument, or the given array. None if absent.
  nb::object give(Result& r) const;
  template <class... R> nb::object give_all(R&... r) const { return nb::make_tuple(give(r)...); }

 private:
  static constexpr std::size_t kMaxArguments = 16;
  /// The next argument, unless it has another form.
  const Array& take(const char* name, nb::handle object, Form form);

  std::string_view op_;
  Framework framework_;
  Device device_;
  StepParams* mirror_ = nullptr;
  /// Constructed on demand: sixteen empty ones would cost more than the rest of a small call.
  union Slots {
    Slots() {}
    ~Slots() {}
    Array at[kMaxArguments];
  } slots_;
  std::array<const char*, kMaxArguments> names_{};
  std::size_t count_ = 0;
  std::array<Block, 4> scratch_;
  std::array<nb::object, 4> gpu_scratch_;
  std::size_t scratch_count_ = 0;
};

/// Throws unless `object` is None or has `n` entries; returns entry i, or None.
class Several {
 public:
  Several(std::string_view op, const char* name, nb::handle object, std::size_t n);
  nb::object operator[](std::size_t i) const;

 private:
  nb::object items_;
};

/// The gradients to compute: all, or those whose flag in `needs` is true.
class Needs {
 public:
  Needs(std::string_view op, nb::handle needs, std::size_t n);
  bool operator[](std::size_t i) const { return flags_[i]; }
  bool none() const;

 private:
  std::array<bool, 8> flags_{};
  std::size_t n_;
};

}  // namespace hpcdl::python
