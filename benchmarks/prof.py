import jax, jax.numpy as jnp, numpy as np, time, sys
from quell.models import logistic_regression
from quell.families import FullRank
from quell.problem import Problem
from quell.draw import Sampler
from quell.fit.gradient import Gradient
from quell.paper.ensembles import variates
import optax, numpyro, numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO, autoguide
def timeit(f, *a, n=2000, reps=5):
    r=f(*a); jax.block_until_ready(r); ts=[]
    for _ in range(reps):
        t=time.perf_counter(); jax.block_until_ready(f(*a)); ts.append((time.perf_counter()-t)/n*1e6)
    return min(ts)
def ours(X,y,names,n):
    m=logistic_regression(X,y); fam=FullRank(X.shape[1]); g=Gradient(Problem(m,fam),variates(names),sampler=Sampler(10,1))
    opt=optax.adam(1e-3)
    params=fam.init()
    def run(key):
        def body(c,k):
            p,o,s=c
            gr,s,info=g.update(k,p,s)
            u,o=opt.update(gr,o)
            return (optax.apply_updates(p,u),o,s),(info.elbo,info.base_sq_norm,info.combined_sq_norm)
        c=(params,opt.init(params),g.init(params))
        return jax.lax.scan(body,c,jax.random.split(key,n))
    t=time.time(); f=jax.jit(run); f(jax.random.key(0)); print(names,'compile+first',time.time()-t)
    return timeit(f,jax.random.key(0),n=n)
def npyro(X,y,n):
    N,d=X.shape; X=jnp.asarray(X); y=jnp.asarray(y,float)
    def model():
        w=numpyro.sample('w',dist.Normal(jnp.zeros(d),1).to_event(1))
        with numpyro.plate('N',N,subsample_size=10) as i:
            numpyro.sample('y',dist.Bernoulli(logits=X[i]@w),obs=y[i])
    g=autoguide.AutoMultivariateNormal(model)
    svi=SVI(model,g,optax.adam(1e-3),Trace_ELBO())
    s0=svi.init(jax.random.key(0))
    f=jax.jit(lambda s: jax.lax.scan(lambda s,_: svi.update(s),s,None,length=n))
    return timeit(f,s0,n=n)
for N,d in ((690,15),(208,61),(1000,200)):
    rng=np.random.default_rng(0); X=rng.normal(size=(N,d)); y=rng.integers(0,2,N)
    n=1000 if d<100 else 200
    print(N,d,'numpyro',npyro(X,y,n))
    for names in ('none',['c1','c2','c5','c7'],'S7'):
        print('   ',names,ours(X,y,names,n), flush=True)
