#pragma once
// How an op on a GPU chooses the way of a call: the one that the stream's table says, if it can compute the call, else
// the built-in choice.
//
// A call is a struct with
//   s                      the stream
//   op()                   the name of its op in tables
//   family()               the name under which it is preferred; several ops may share it
//   fields()               the properties that determine its ways
//   number(name), name(id) static: the ways of the op; number() is negative for a name that is not one
//   fits(id)               whether this way can compute the call
//   preferred(id)          the way for a call where `id` is preferred, or -1
//   built_in()
//   words()                the call, for people
//   operands()             a std::any with a copy, from which the tuner makes operands of its own

#include <algorithm>
#include <iterator>

#include "hpcdl/core/ways.h"

namespace hpcdl {

/// The place of a way in a list of names, or -1.
int number_of(const auto& names, std::string_view name) {
  const auto found = std::find(std::begin(names), std::end(names), name);
  return found == std::end(names) ? -1 : static_cast<int>(found - std::begin(names));
}

/// The way that the table says and that can compute the call, or -1. `refused`: a name in the table that is no such
/// way, if not null.
template <class Call> int told_way(const Call& c, std::string* refused = nullptr) {
  const Ways* ways = c.s.ways().get();
  if (!ways) return -1;
  const auto refuse = [&](const ToldWay& told) {
    if (refused && refused->empty()) *refused = told.name();
  };
  if (const auto* told = ways->preferred(c.family())) {
    const int id = told->number(Call::number);
    if (const int way = id < 0 ? -1 : c.preferred(id); way >= 0) return way;
    refuse(*told);
  }
  if (const auto* told = ways->of_call(c.op(), c.fields())) {
    const int id = told->number(Call::number);
    if (id >= 0 && c.fits(id)) return id;
    refuse(*told);
  }
  return -1;
}

/// Notes that a call is computed in the way `used`, which may be one that no table can name. `operands`: if its ways can
/// be measured.
template <class Call>
void note_way(const Call& c, std::string_view used, std::any operands = {}, bool told = false,
              std::string refused = {}) {
  const auto fields = c.fields();
  c.s.way_notes()->add({std::string(c.op()), {fields.begin(), fields.end()}}, {.used = std::string(used),
                                                                               .told = told,
                                                                               .refused = std::move(refused),
                                                                               .call = c.words(),
                                                                               .operands = std::move(operands)});
}

template <class Call> int choose_way(const Call& c) {
  std::string refused;
  const int told = told_way(c, c.s.way_notes() ? &refused : nullptr);
  const int id = told >= 0 ? told : c.built_in();
  if (c.s.way_notes()) note_way(c, Call::name(id), c.operands(), told >= 0, std::move(refused));
  return id;
}

}  // namespace hpcdl
