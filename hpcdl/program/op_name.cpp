#include "hpcdl/op_info.h"

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "hpcdl/core/error.h"

namespace hpcdl {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::string, std::uint16_t, std::less<>> numbers{{"", 0}};
  std::deque<std::string> names{""};                    // their addresses never change
  std::deque<std::array<OpFunction, 2>> functions{{}};  // forward, backward
};

/// Created by the first op that registers, which may be before main().
Table& table() {
  static Table t;
  return t;
}

}  // namespace

OpName::OpName(std::string_view name) {
  auto& t = table();
  const std::lock_guard lock(t.mutex);
  if (const auto it = t.numbers.find(name); it != t.numbers.end()) {
    number_ = it->second;
    return;
  }
  require(t.names.size() < 65536, "program", "too many names of ops");
  number_ = static_cast<std::uint16_t>(t.names.size());
  t.names.emplace_back(name);
  t.functions.emplace_back();
  t.numbers.emplace(name, number_);
}

bool OpName::is_known(std::string_view name) {
  auto& t = table();
  const std::lock_guard lock(t.mutex);
  return t.numbers.contains(name);
}

std::string_view OpName::view() const {
  auto& t = table();
  const std::lock_guard lock(t.mutex);
  return t.names[number_];
}

void know(OpName name, bool backward, const OpFunction& f) {
  auto& t = table();
  const std::lock_guard lock(t.mutex);
  auto& known = t.functions[name.number()][backward];
  require(!known.run || known.run == f.run, "program", "two ops are called \"{}\"", t.names[name.number()]);
  if (!known.run) known = f;
}

void know(const OpInfo& op, std::uint32_t version, void (*check)(const RawRecord&)) {
  const OpName name(op.name);
  OpFunction f{op.forward,  static_cast<std::uint32_t>(op.args_bytes), version, &op, op.bound, op.valid, check,
               op.exchanges};
  know(name, false, f);
  if (!op.backward) return;
  f.run = op.backward, f.check = nullptr, f.exchanges = nullptr;
  know(name, true, f);
}

OpFunction function_of(OpName name, bool backward) {
  auto& t = table();
  const std::lock_guard lock(t.mutex);
  return t.functions[name.number()][backward];
}

}  // namespace hpcdl
