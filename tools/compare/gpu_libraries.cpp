#include <algorithm>

#include "hpcdl/core/ways.h"
#include "tools/compare/peers.h"

namespace hpcdl::lab::compare {
namespace {

/// The case whose weights are not packed.
Case dense(const Case& c) {
  if (!c.op.starts_with("int4_linear")) return c;
  const auto same = [&](const Case& other) {
    return other.op == "linear" && other.dtype == c.dtype && !other.backward;
  };
  const auto all = cases_at({"linear"}, c.shape);
  return *std::find_if(all.begin(), all.end(), same);
}

}  // namespace

const std::vector<std::string>& gpu_library_peers() {
  static const std::vector<std::string> names{"cublaslt", "cudnn"};
  return names;
}

Peer gpu_library_peer(const std::string& name, const Stream& stream) {
  const bool products = name == "cublaslt";
  WayNames names;
  if (products) names.preferred = {{"gemm", "cublasLt"}};
  else names.preferred = {{"attention", "cudnn"}, {"conv2d", "cudnn"}};
  Peer peer{.name = name, .version = {}, .file = {}, .missing = {}, .offer = {}};
  peer.offer = [products, stream, ways = std::make_shared<const Ways>(std::move(names))](const Case& c,
                                                                                         const CaseRun&) {
    const auto uses_library = [&](const auto& note) {
      return note.second.told && note.second.used.starts_with(products ? "cublasLt" : "cudnn");
    };
    Offer o;
    Stream by_library = stream;
    by_library.set_ways(ways);
    WayNotes notes;
    std::shared_ptr<const CaseRun> run;
    {
      const WithWayNotes with(by_library, notes);
      run = std::make_shared<const CaseRun>(ready(dense(c), by_library));
    }
    const auto all = notes.all();
    if (std::none_of(all.begin(), all.end(), uses_library)) o.missing = "it can compute no part of this case";
    else o.call = [run, by_library]() mutable { run->run(by_library); };
    return o;
  };
  return peer;
}

}  // namespace hpcdl::lab::compare
