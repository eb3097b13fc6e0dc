#pragma once

#include "hpcdl/program/program.h"

namespace hpcdl {

class Graph;

/// A value of a program being recorded: a handle, cheap to copy. A default Var is an absent optional operand.
/// Vars stay valid for Instance::tensor() after the Graph is gone.
class Var {
 public:
  using symbolic_tag = void;

  Var() = default;
  Var(Graph* graph, int id, Operand operand) : graph_(graph), id_(id), operand_(operand) {}

  explicit operator bool() const { return id_ >= 0; }
  Graph& graph() const { return *graph_; }
  int id() const { return id_; }
  const Operand& operand() const { return operand_; }
  const Spec& spec() const { return operand_.spec; }
  const Shape& shape() const { return operand_.spec.shape; }
  DType dtype() const { return operand_.spec.dtype; }
  std::int64_t operator[](int i) const { return operand_.spec.shape[i]; }

 private:
  Graph* graph_ = nullptr;
  int id_ = -1;
  Operand operand_;
};

}  // namespace hpcdl
