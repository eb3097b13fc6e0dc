#include "hpcdl/program/pages.h"

#include <algorithm>
#include <vector>

namespace hpcdl {
namespace {

std::vector<OpName>& ops() {
  static std::vector<OpName> list;
  return list;
}

}  // namespace

bool know_whole_pages(OpName op) {
  ops().push_back(op);
  return true;
}

bool has_whole_pages(const Program& program) {
  return std::ranges::any_of(program.records,
                             [](const Record& r) { return std::ranges::find(ops(), r.op) != ops().end(); });
}

}  // namespace hpcdl
