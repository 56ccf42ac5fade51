// When requests of an open load are sent. Every schedule is a pure function of its seed: the same on every host and
// with every standard library.
#ifndef BATON_CLI_BENCH_ARRIVALS_H_
#define BATON_CLI_BENCH_ARRIVALS_H_

#include <cstdint>
#include <vector>

namespace baton::bench {

// A stream of uniform numbers named by (seed, stream).
class RandomStream {
 public:
  RandomStream(uint64_t seed, uint32_t stream) : seed_(seed), stream_(stream) {}
  double Uniform();  // (0, 1)
  double Normal();   // mean 0, variance 1
  // Mean shape * scale. Source: G. Marsaglia and W. Tsang, "A Simple Method for Generating Gamma Variables", 2000.
  double Gamma(double shape, double scale);

 private:
  const uint64_t seed_;
  const uint32_t stream_;
  uint32_t next_ = 0;
};

struct ArrivalOptions {
  double rate = 1;        // requests a second, > 0
  double burstiness = 1;  // shape of the gamma distribution of the gaps, > 0: 1 is Poisson, less is burstier
  uint64_t seed = 0;
  uint64_t max_requests = 0;
  double max_seconds = 0;  // none after this; 0: no limit
};

// Intended starts in seconds since the run's start, ascending; the first gap counts too. Gaps have mean 1 / rate.
std::vector<double> Arrivals(const ArrivalOptions& options);

}  // namespace baton::bench

#endif  // BATON_CLI_BENCH_ARRIVALS_H_
