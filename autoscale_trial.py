import sys; sys.path.insert(0,'/tmp/scale/src')
import math, random, statistics
from millrace.policies import autoscale as a
def workload(rng):
    kind=rng.choice(["compute","io","memory","splits"])
    need=math.exp(rng.uniform(0,math.log(500)))
    own=math.exp(rng.uniform(math.log(1e-3),math.log(1)))
    w=dict(kind=kind,own=own,k=own*need,floor=0.0,alpha=0.0,splits=10**9,noise=rng.uniform(0.0,0.10))
    if kind=="io":  # plateau above own
        w["floor"]=own*rng.uniform(1.2,4)
    if kind=="memory": w["alpha"]=rng.uniform(0.0,0.3)/need
    if kind=="splits": w["splits"]=max(1,int(need*rng.uniform(0.3,2)))
    return w
def truth(w,W):
    eff=min(W,w["splits"])
    give=max(w["k"]*(1+w["alpha"]*(eff-1))/eff, w["floor"])
    b=max(w["own"],give)
    busy=min(1.0, max(w["k"]*(1+w["alpha"]*(eff-1))/W, 0)/b) if not w["floor"] or give>w["floor"] else min(1.0,1.0)
    if w["floor"] and give==w["floor"]:
        busy=1.0 if give>=w["own"] else give/w["own"]  # waiting for I/O counts as computing
    return b,busy
def least(w):
    best=min(truth(w,W)[0] for W in range(1,2001))
    return next(W for W in range(1,2001) if truth(w,W)[0]<=1.01*best)
def look(w,W,rng):
    b,busy=truth(w,W)
    n=w["noise"]/math.sqrt(10); n=max(min(n,0.01),n/math.sqrt(10))
    own=w["own"]*math.exp(rng.gauss(0,n/2))
    bb=max(b*math.exp(rng.gauss(0,n)),own)
    wait=max(0,bb-own)
    if w["own"]>=b*0.999: wait=bb*abs(rng.gauss(0,0.003)); 
    return a.Look(W,bb,wait,min(1,max(0,busy*math.exp(rng.gauss(0,0.01)))),n)
def run(seed,verbose=False):
    rng=random.Random(seed); w=workload(rng); lim=a.Limits(1,1000)
    s=a.begin(1,lim).value; decisions=0; path=[1]
    for i in range(60):
        d=a.step(s,look(w,s.workers,rng),lim)
        if verbose: print(i,s.workers,d.value.workers,d.value.phase,d.reason)
        if d.value.workers!=s.workers: decisions+=1; path.append(d.value.workers)
        s=d.value
    t=least(w)
    return w,t,s.workers,decisions,path
if __name__=="__main__":
    if len(sys.argv)>2:
        print(run(int(sys.argv[2]),True)); sys.exit()
    N=int(sys.argv[1]); bad=[];dec=[]
    from collections import Counter
    kinds=Counter()
    for seed in range(N):
        w,t,got,d,path=run(seed)
        dec.append(d); kinds[w["kind"]]+=1
        if abs(got-t)>max(1,0.03*t): bad.append((seed,w["kind"],round(w["noise"],3),t,got,path[:12]))
    print(len(bad),"of",N,"bad; decisions median",statistics.median(dec),"p90",sorted(dec)[int(.9*N)],kinds, Counter(b[1] for b in bad))
    for b in bad[:25]: print(b)
