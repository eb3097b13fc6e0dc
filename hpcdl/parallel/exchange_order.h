#pragma once
// The order in which ranks exchange data. Ranks of a group that exchange different things, or in different orders, wait
// for each other for ever, or exchange the wrong bytes. The records of their programs tell before anything runs.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/parallel/agreement.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/program.h"

namespace hpcdl::parallel {

/// A program by what it is for: "update".
struct NamedProgram {
  std::string name;
  const Program* program = nullptr;
};

/// What the programs exchange, in order: facts that ranks compare by expect_agreement() before they begin. `axis`: only
/// along that one ("tp of 2"), without the numbers of the records, for ranks whose programs differ in others.
std::vector<Fact> exchange_facts(std::span<const NamedProgram> programs, std::string_view axis = {});

/// Whether the ranks of a mesh finish the exchanges of their programs if each of them starts one after another, as
/// the GPU does. `by_rank`: programs of all its ranks, for example recorded from Mesh::described(). Returns an empty
/// string, or what two ranks of one group exchange instead of the same thing: by rank, program, record, op, axis and
/// bytes. If every group agrees but some wait for each other in a circle: the exchanges in which they wait.
std::string exchange_conflict(const MeshShape& shape, std::span<const std::vector<NamedProgram>> by_rank);

}  // namespace hpcdl::parallel
