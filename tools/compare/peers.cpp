#include "tools/compare/peers.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "hpcdl/machine/machine.h"
#include "tools/shared_library.h"

namespace hpcdl::lab::compare {

namespace {

void suggest(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 0); }

/// OpenMP threads that spin long after a call would take cores from the next side.
void tune_openmp(int threads) {
  suggest("OMP_NUM_THREADS", std::to_string(threads));
  suggest("GOMP_SPINCOUNT", "20000");
}

Offer bare_products_only(const CaseRun& run, const char* what) {
  Offer o;
  const auto p = product_of(run);
  if (!p) o.missing = fmt::format("{} offers only plain matrix products", what);
  else if (p->dtype != DType::f32) o.missing = fmt::format("{} multiplies f32 only", what);
  else o.result = std::make_shared<Buffer>(p->m * p->n * 4);
  return o;
}

// The C interfaces, as their headers declare them; neither library's headers are needed to build.
struct DnnlVersion {
  int major, minor, patch;
};
using DnnlVersionFn = const DnnlVersion*();
using DnnlSgemm = int(char, char, std::int64_t, std::int64_t, std::int64_t, float, const float*, std::int64_t,
                      const float*, std::int64_t, float, float*, std::int64_t);
using CblasSgemm = void(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
using CblasSgemv = void(int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;

Peer onednn(int threads) {
  tune_openmp(threads);
  Peer peer{.name = "onednn", .version = {}, .file = {}, .missing = {}, .offer = {}};
  const SharedLibrary library({"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"});
  if (!library) return peer.missing = library.error(), peer;
  const auto* v = library.needed<DnnlVersionFn>("dnnl_version")();
  auto* const sgemm = library.needed<DnnlSgemm>("dnnl_sgemm");
  peer.version = fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
  peer.file = std::filesystem::weakly_canonical(library.path()).string();
  if (auto* const set = library.function<void(int)>("omp_set_num_threads")) set(threads);
  peer.offer = [sgemm](const Case&, const CaseRun& run) {
    Offer o = bare_products_only(run, "the C interface of oneDNN");
    if (!o.missing.empty()) return o;
    o.call = [sgemm, p = *product_of(run), d = reinterpret_cast<float*>(o.result->data())] {
      const int status =
          sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1, static_cast<const float*>(p.a),
                p.lda(), static_cast<const float*>(p.b), p.ldb(), 0, d, p.n);
      require(status == 0, "compare", "dnnl_sgemm answered with status {}", status);
    };
    return o;
  };
  return peer;
}

Peer openblas(int threads) {
  tune_openmp(threads);
  suggest("OPENBLAS_NUM_THREADS", std::to_string(threads));
  suggest("OPENBLAS_THREAD_TIMEOUT", "20");  // its own threads yield for 2^20 cycles after a call, then sleep
  // Releases older than a CPU treat it as a generation that they know, without AVX-512: half the speed. A peer runs
  // at its best, so a slower choice of the environment does not count.
  const char* core = std::getenv("OPENBLAS_CORETYPE");
  const std::string_view chosen = core ? core : "";
  if (this_machine().avx512 && chosen != "Cooperlake" && chosen != "SapphireRapids")
    ::setenv("OPENBLAS_CORETYPE", "SkylakeX", 1);
  ::unsetenv("OPENBLAS_L2_SIZE");
  Peer peer{.name = "openblas", .version = {}, .file = {}, .missing = {}, .offer = {}};
  const SharedLibrary library({"libopenblas.so.0", "libopenblas.so"});
  if (!library) return peer.missing = library.error(), peer;
  auto* const sgemm = library.needed<CblasSgemm>("cblas_sgemm");
  auto* const sgemv = library.needed<CblasSgemv>("cblas_sgemv");
  peer.version = fmt::format("{}, core {}", library.needed<char*()>("openblas_get_config")(),
                             library.needed<char*()>("openblas_get_corename")());
  peer.file = std::filesystem::weakly_canonical(library.path()).string();
  library.needed<void(int)>("openblas_set_num_threads")(threads);
  peer.offer = [sgemm, sgemv](const Case&, const CaseRun& run) {
    Offer o = bare_products_only(run, "OpenBLAS");
    if (!o.missing.empty()) return o;
    o.call = [sgemm, sgemv, p = *product_of(run), d = reinterpret_cast<float*>(o.result->data())] {
      const auto i = [](std::int64_t n) { return static_cast<int>(n); };
      const auto *a = static_cast<const float*>(p.a), *b = static_cast<const float*>(p.b);
      if (p.m == 1)
        return sgemv(kRowMajor, p.transpose_b ? kNoTrans : kTrans, i(p.transpose_b ? p.n : p.k), i(p.ldb()), 1, b,
                     i(p.ldb()), a, 1, 0, d, 1);
      sgemm(kRowMajor, p.transpose_a ? kTrans : kNoTrans, p.transpose_b ? kTrans : kNoTrans, i(p.m), i(p.n), i(p.k), 1,
            a, i(p.lda()), b, i(p.ldb()), 0, d, i(p.n));
    };
    return o;
  };
  return peer;
}

}  // namespace

const std::vector<std::string>& library_peers() {
  static const std::vector<std::string> names{"onednn", "openblas"};
  return names;
}

Peer library_peer(const std::string& name, int threads) {
  return name == "onednn" ? onednn(threads) : openblas(threads);
}

double difference(const Product& ours, const Buffer& theirs) {
  const auto *x = static_cast<const float*>(ours.d), *y = reinterpret_cast<const float*>(theirs.data());
  double worst = 0, top = 0;
  for (std::int64_t i = 0; i < ours.m * ours.n; ++i) {
    const double d = std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
    if (!(d <= worst)) worst = d;  // keeps NaN
    top = std::max(top, std::fabs(static_cast<double>(y[i])));
  }
  return worst / std::max(top, 1e-30);
}

double rounding(const Product& p) { return 4 * std::sqrt(static_cast<double>(p.k)) * 0x1p-23; }

}  // namespace hpcdl::lab::compare
