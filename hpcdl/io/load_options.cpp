#include "hpcdl/io/load_options.h"

#include "hpcdl/core/error.h"

namespace hpcdl::io {

std::vector<NamedAdapter> read_adapters(std::string_view verb, const std::vector<std::string>& words) {
  std::vector<NamedAdapter> list;
  for (const auto& word : words) {
    if (word.empty()) continue;
    const auto sign = word.find('=');
    NamedAdapter a{.name = word.substr(0, sign == word.npos ? 0 : sign),
                   .folder = word.substr(sign == word.npos ? 0 : sign + 1)};
    if (a.folder.empty()) fail_usage(verb, "--adapter {}: expected a folder after the name: NAME=DIR", word);
    for (const auto& other : list)
      if (other.name == a.name && !a.name.empty())
        fail_usage(verb, "--adapter: {} and {} are both called {}: give each a name of its own", other.folder.string(),
                   a.folder.string(), a.name);
    list.push_back(std::move(a));
  }
  for (const auto& a : list)
    if (a.name.empty() && list.size() > 1)
      fail_usage(verb, "--adapter {}: one of several adapters needs a name, by which texts choose it: NAME={}",
                 a.folder.string(), a.folder.string());
  return list;
}

void LoadOptions::use(std::vector<NamedAdapter> adapters) {
  if (adapters.size() == 1 && adapters[0].name.empty()) adapter = std::move(adapters[0].folder);
  else choices = std::move(adapters);
}

LoadOptions LoadOptions::on(Device where) const {
  if (!where.is_cuda() && vram > 0)
    fail_usage("model", "--vram limits the memory of a GPU: give --ram, or --device cuda");
  if (!where.is_cuda()) return *this;
  if (ram > 0 || mode == LoadMode::direct)
    fail_usage("model",
               "layers stream from files on a CPU only: on a GPU, --vram lets them stream from host memory; leave out "
               "--ram and --load direct");
  auto o = *this;
  o.device = where;
  if (mode == LoadMode::automatic) o.mode = LoadMode::mapped;
  return o;
}

}  // namespace hpcdl::io
