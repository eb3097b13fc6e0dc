#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/program.h"

namespace hpcdl::pipe {

/// The layer of a scope, the smallest part that is not cut: "layers.3" of "layers.3.mlp.up_proj", "head" of "head.norm".
std::string layer_of(std::string_view scope);

/// Whether a scope is that of records of a vocabulary whose rows the ranks divide (nn/vocabulary_share.h).
bool is_of_vocabulary(std::string_view scope);

/// Whether a pass has such records.
bool divides_vocabulary(const Program& pass);

struct Layers {
  std::vector<std::string> names;  // in the order of forward
  std::vector<int> of_record;
};

/// The layers of a pass. A record in no layer belongs to the first one in forward, and after that to the last one, where
/// backward begins. Throws Error if no record of forward is in a layer.
Layers layers_of(const Program& pass);

}  // namespace hpcdl::pipe
